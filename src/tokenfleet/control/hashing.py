"""A hash of small integers, equal in compiled and plain Python, for draws that any machine can repeat."""


def scrambled(key: int, salt: int) -> int:
    """31 bits that look drawn by chance.

    Args:
        key: Any number from 0 on; its lowest 31 bits count.
        salt: Another one, 0 .. 2**31 - 1: with each salt, another draw.

    Returns:
        0 .. 2**31 - 1.
    """
    mixed = (key & 0x7FFFFFFF) * 0x9E3779B1 & 0x7FFFFFFF
    mixed = (mixed ^ mixed >> 15 ^ salt) * 0x85EBCA6B & 0x7FFFFFFF
    return mixed ^ mixed >> 13
