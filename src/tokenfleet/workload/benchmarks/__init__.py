"""Result files of load tools, read into one kind of measured run in SI units."""
