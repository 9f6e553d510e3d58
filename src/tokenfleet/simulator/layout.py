"""Where everything lies in the one buffer of 64-bit integers that a replay runs in.

Each array more costs a compiled call machine words and a cache line; one flat buffer, passed as its bare address,
made the same algorithm twenty times faster than a tuple of arrays. Nothing checks an index. So the state is written
like structs in C: ``memory[replica + CLOCK]`` is the field ``CLOCK`` of the replica whose row starts at index
``replica``. Rows are always named by the index of their first word, never by a running number, unless a comment says
so.

Times are integer picoseconds since the start of the trace.
"""

from tokenfleet.domain.run import Degraded, Status
from tokenfleet.domain.world import ReplicaState

NEVER_PS = (1 << 63) - (1 << 58)
"""Later than any event: 103 days."""
NONE = 0
"""No row: index 0 is the header, so no row starts there."""
HALF = 0xFFFFFFFF
"""Mask of the lower of two 32-bit fields in one word."""
WORD_BITS = 32
"""Bits used of each word of the ring's bitmap: half of it, which keeps the sign out of the shifts."""

# ---- header: one per buffer, at index 0
REQUESTS_AT = 1  # first request row
CLOCKED_COUNT = 2  # requests that arrive by the clock; their rows come first, in order of arrival
ARRIVED_COUNT = 3  # those of them that have arrived
REPLICAS_AT = 4
REPLICA_COUNT = 5
EVENTS_AT = 6  # time of the next boundary of each replica, packed so that the fleet loop reads few cache lines
IN_FLIGHT_AT = 7  # requests routed to each replica and not ended yet
TREE_AT = 8  # tournament tree over the events
TREE_LEAVES = 9  # a power of two, at least the number of replicas
ROUTER = 10
POOL = 11  # the replicas among which a request is routed; those of the model that was asked for as a rule
TOTAL_IN_FLIGHT = 12
BOUNDS_AT = 13  # lower edge of each gap bin
GUESS_AT = 14  # bin within the octave at each 64th of it
GAPS_AT = 15  # counts of the whole run, class after class
PEAK_GAPS_AT = 16
PEAK_START = 17
PEAK_END = 18  # 0 when nobody asked for a peak window
SAMPLES_AT = 19  # gauges of each replica at the last pause
PATH_AT = 20  # nodes of the path being looked at, root first
FAULT = 21  # the rule of the kernel itself that was broken, 0 while none is
PAUSED = 22  # time of the last pause
VISITS_AT = 23  # first visit row; NONE in a quiet world, where the rest of the header is not used
STATES_AT = 24  # what each replica is
POOLS_AT = 25  # first pool row, that of the model that is asked for
QUEUE_LIMIT = 26  # requests waiting at a replica from which on it takes no more
RETRY_AFTER = 27
MOST_ATTEMPTS = 28
BACKOFF = 29  # longest wait before the second attempt
LONGEST_BACKOFF = 30
LATE_AT = 31  # a heap of arrivals that are not by the clock, pairs of time and request row
LATE_COUNT = 32
LATE_PS = 33  # the first of them, or the first alarm
LINE = 34  # requests that the next free user sends, linked
ENDED = 35  # last time that a request ended, well or not
POOLS_END = 36  # behind the last pool row
ORDER_KIND = 39  # what becomes of a replica when the replay goes on, NONE for nothing
ORDER_REPLICA = 40  # its number
ORDER_GROUP = 41  # the group whose physics it has from now on
FIRSTS_AT = 42  # requests whose first token is fixed, since a controller was told; NONE without a controller
FIRSTS_COUNT = 43
SCRAPES_AT = 44  # what the router knows of each replica besides its own counts
DOOR_AT = 46  # what the door goes by; NONE where everybody is let in
LEVEL_COUNT = 45  # priorities that occur in the trace
LEDGER_AT = 47  # what each request took; NONE where nobody asks
SMALLER_AT = 48  # pool row of the smaller model; NONE without one
CLASS_COUNT = 49  # classes of requests whose gaps are counted apart, 1 where nobody asks
HAS_BONDS = 52  # whether any visit has a bond
READ_PS = 50  # time in which a client reads a token, 0 where it takes them as they come
WINDOWED = 51  # whether layers of any model have a window
DEADLINE = 53  # time after which who comes now and still waits is refused, 0 for never
PATIENCE_AT = 56  # first patience row; NONE where no client ever gives up
FIRST_PATIENCE = 57  # time to the first token after which clients give up, 0 for never
WHOLE_PATIENCE = 58  # the same to the last token
ALARMS_AT = 59  # a heap of patience rows, the first alarm first
ALARM_COUNT = 60
ALARM_PS = 61  # the first of them
HEADER_WORDS = 62

MOST_FIRSTS = 1 << 16
"""First tokens after which the replay pauses for them to be read; one boundary may add some more."""

FAIL = 1
SLOW = 2
RELEASE = 3  # a replica may have room for batch
DISSOLVE = 4  # no replica will ever be ready for those that wait in the lane

MOST_PREEMPTIONS = (1 << 19) - 1
"""Mask of the preemption count in ``HISTORY``."""
SWAPPED = 1 << 55
"""Bit of ``HISTORY``: its KV is in host memory."""
STATUS_TOO_LONG = int(Status.REJECTED_TOO_LONG)
STATUS_QUEUE_FULL = int(Status.REJECTED_QUEUE_FULL)
STATUS_NOBODY_READY = int(Status.REJECTED_NOBODY_READY)
STATUS_LOST = int(Status.LOST)
STATUS_CANCELLED = int(Status.CANCELLED)
STATUS_TIMED_OUT = int(Status.TIMED_OUT)
STATUS_DEADLINE = int(Status.REJECTED_DEADLINE)
DEGRADED_SMALLER = int(Degraded.SMALLER_MODEL)
STATUS_BATCH_SHED = int(Status.REJECTED_BATCH_SHED)
"""Those behind it follow the codes of the door, in the same order."""

STATE_READY = int(ReplicaState.READY)

ROUND_ROBIN = 0
LEAST_IN_FLIGHT = 1
PREFIX_AFFINITY = 2
POWER_OF_TWO = 3
LEAST_LOADED = 4
LEAST_WAITING = 5
LEAST_KV = 6
BY_LENGTH = 7
BY_TIER = 8

# ---- parameters of a replica group
TOKEN_TABLE_AT = 0  # duration of a step by number of tokens
SEQUENCE_PS = 1
CONTEXT_PS = 2
WINDOW_PS = 3
WINDOW_TOKENS = 4
PAIR_PS = 5
EAGER_PS = 6
REQUEST_PS = 7
MAX_BATCHED_TOKENS = 8
MAX_SEQUENCES = 9
BLOCK_TOKENS = 10
BLOCK_COUNT = 11
FIXED_BLOCKS = 12  # held by each running sequence besides those that grow
WATERMARK_BLOCKS = 13
CHUNKED = 14
FULL_PROMPT_GATE = 15
LAG = 16  # steps between fixing a step and starting it: 0, or 1 with async scheduling
CONTEXT_LIMIT = 17
RING_MASK = 18
PREFIX_CACHING = 19
RULES = 20  # whose rules the scheduler follows
LONG_CHUNK = 21  # tokens of one prompt in a step at most
LONE_CHUNK = 22  # the same for a request that is alone
SERIAL_FRONT_END = 23
BY_PRIORITY = 24  # BY_LANE where batch gives way to interactive requests
GPU_COUNT = 25
DECODE_INTERVAL = 26  # rounds of decode that follow one of prefill (SGLang)
STEP_TOKENS = 27  # tokens that a decoding sequence computes in a step: its own and those drafted
SWAP_BLOCKS = 28  # KV blocks of preempted sequences that host memory takes
SWAP_BLOCK_PS = 29  # time in which one of them is moved there or back
NODE_END = 30  # where nodes have their ends in blocks of its size
DRAFT_TABLE_AT = 31  # duration of drafting by number of decoding sequences
KEPT_AT = 32  # for each drafted token, the chance in 2**31 that all up to it are kept
BLOCK_SHIFT = 33  # binary logarithm of BLOCK_TOKENS, NO_SHIFT where that is no power of two
GROWTH_BLOCKS = 34  # blocks of a stretch (BLOCK_TOKENS of context) in layers that keep all of it
WINDOW_BLOCKS = 35  # blocks of a stretch in layers with a window; 0 where none has one, and then it has 1 in all
STRETCH_BLOCKS = 36  # both
BEHIND_TOKENS = 37  # computed tokens that the next one still sees in those layers
FREE_LAG = 38  # tokens of a decode that are in flight when its blocks behind the window are given back
WINDOW_STRETCHES = 39  # that a sequence holds in those layers at most, while a step computes the longest chunk
UNHASHED_LAST = 40  # freed blocks without a name wait behind all others, not in front of them
RECEIVE_INTERVAL = 41  # rounds of decode between two looks for new requests (SGLang)
WINDOW_PAIR_PS = 42  # of a query-key pair of prefill in layers with a long window
GROUP_WORDS = 48

BY_LANE = 2

VLLM = 0
TRTLLM = 1
SGLANG = 2

# ---- replica: what every boundary touches first, as eight words share a cache line
CLOCK = 0  # the boundary at which the next step is fixed
HORIZON = 1  # end of the last step fixed so far; equals the clock without async scheduling
STEP = 2  # number of the next step to fix
RUN = 3  # pure decode steps fixed at the clock and not applied yet
STEP_PS = 4  # duration of the first step of the run
GROWTH_PS = 5  # how much longer each further step of the run is
GROUP = 6
NUMBER = 7
RUNNING = 8  # sequences in the running list, those that wait for their last token included
DECODING = 9  # sequences that decode in the next step
CONTEXT = 10  # tokens they attend to in the next step, their own new one included
GROWING = 11  # those of them whose window is not full
WINDOW_CONTEXT = 12  # like CONTEXT, each cut at the window
FREE_BLOCKS = 13
UNHASHED = 14  # free blocks in front of all that hold something; without a prefix cache, no end of them
WAITING = 15
QUEUE_HEAD = 16  # request rows, linked
QUEUE_TAIL = 17
FIRST_RUNNING = 18  # sequence rows, linked in order of admission
LAST_RUNNING = 19
PARTIAL = 20  # sequences whose prefill is not complete, linked as in the ring, in order of admission
SPARE_SLOT = 21  # unused sequence rows, last used first so that they stay in the cache
PENDING = 22  # sequences whose last step is in flight (async scheduling)
ADMITTED = 23  # admissions so far
BUDGET = 24  # tokens left in the step being fixed
PAIRS = 25  # query-key pairs of prefill in it
CACHED_PAIRS = 26  # those of them whose key came from the prefix cache
PREEMPTED = 27  # whether anybody was preempted in it
CHUNK_LIMIT = 28  # tokens of one prompt in the step being fixed, at most
AHEAD_BLOCKS = 29  # free blocks that the drafts of the step being fixed may need
OCCUPIED = 30  # a bit for each word of the bitmap that has one
BITMAP_AT = 31
PHASES_AT = 32
RING_AT = 33
CLASSES_AT = 34  # decoding sequences of each class; DECODING itself where there is one
SHARED_PS = 35  # part of each step of the run that its sequences share equally
BUSY_UNTIL = 36  # end of the last step fixed and counted as busy
EMPTIED = 37  # when a request left it last
OLDEST = 38  # extents nobody uses, least recently used first
NEWEST = 39
PREFILL_BUSY = 40
DECODE_BUSY = 41
CACHED_BUSY = 42
STEPS = 43
MIXED_STEPS = 44
PREEMPTIONS = 45
SCOUT = 46  # an extent a little newer than the oldest; all from that to this one are near
LEAD = 47  # how many they are, roughly
JOINED = 48  # decoding sequences that brought their KV along and have yielded no token yet
RESUMED_COUNT = 49  # decodes in the step being fixed that were left out of the one before
LEFT_OUT_COUNT = 50  # decodes that were left out of the last step fixed
CONTENDED = 51  # decoding sequences that write where somebody else reads or writes too
MOVED_BLOCKS = 52  # blocks moved there or back in the step being fixed
DRAFTED = 53  # whether the step fixed last drafted tokens of which it is not known yet how many are kept
DECODES_DUE = 54  # rounds of decode before anybody prefills again (SGLang)
BERTH = 55  # what it shares its gpus by; NONE where it has them to itself
PROMISED = 56  # blocks set aside for running sequences and not taken yet (TensorRT-LLM)
IS_FULL = 57  # somebody was not admitted for want of blocks, and nobody has left since (SGLang)
FIRST_GONE = 58  # patience rows of requests that run, or did, and whose clients have given up, linked
UNSETTLED = 59  # decodes that give back blocks behind their window by no rule of their step number yet
HIT_BLOCKS = 60  # what the last look-up found
HIT_UNUSED = 61  # those of them nobody uses, so that taking them shrinks the free blocks
HIT_NODE = 62  # the deepest node in which the last look-up looked
SPARE_EXTENT = 63  # extent rows given back
FRESH_EXTENT = 64  # first extent row never used; rows are not touched before, so unused ones take no memory
SPARE_RESIDENT = 65
FRESH_RESIDENT = 66
TABLE_AT = 67  # hash table from node to resident; it moves on when it grows
TABLE_MASK = 68
TABLE_COUNT = 69  # residents in the table
NEW_TOKEN_RATIO = 70  # share of their declared output that decodes are expected to need (SGLang), of RATIO_ONE
EXPECTED = 71  # output that running sequences are expected to need, in tokens times RATIO_ONE
DECODED = 72  # end of the last step that decoded (SGLang)
FRONT_END = 73  # when a serial front end is free again
LEVELS_AT = 74  # first and last waiting request of each priority, the most urgent first
SHARE_CLOCK = 75  # what one sequence would have taken of such parts, had it decoded all the time
SHARE_CARRY = 76  # what did not divide evenly so far, less than a picosecond for each sequence
HOST_BLOCKS = 77  # blocks of preempted sequences in host memory
CUT_TOKENS = 78  # tokens that sequences drafted less in the step fixed last, for want of budget
HELD_AT = 79  # behind the window rows of its sequences, which are in the order of these
STEPS_WITH_PREFILL = 80  # these are counted along with the ledger
PREFILL_TOKENS = 81
DECODE_TOKENS = 82
READ_TOKENS = 83  # contexts of the decodes of all steps, added up
PREFILL_PAIRS = 84  # query-key pairs of all steps
LOOKED = 85  # when it looked for new requests last (SGLang)
UNSEEN_ROUNDS = 86  # rounds of decode since then
WINDOW_PAIRS = 87  # like PAIRS, with keys inside the window only
CACHED_WINDOW_PAIRS = 88  # those of them whose key came from the prefix cache
KEPT_TOKENS = 89  # drafted tokens that were kept
SWAPS = 90  # preemptions by swap
SWAPPED_BLOCKS = 91  # moved to host memory or back, in all
RECOMPUTED_TOKENS = 92  # computed again after preemptions; counted along with the ledger
REPLICA_WORDS = 96

IDLE_WITH_WORK = 1  # a request at an empty replica was not admitted
NOTHING_TO_EVICT = 2  # blocks were taken that are not free
CHAIN_WITH_A_HOLE = 3  # a sequence releases blocks that the cache does not know
FIRSTS_FULL = 4  # no fault: the replay goes on when the first tokens have been read

FIRST_TABLE = 64
"""Slots of the first hash table of a replica, a power of two; each next one is twice as large and lies behind it."""
SLOTS_PER_RESIDENT = 4
"""Slots that the table has for each resident at least: fewer make lookups collide, more are spread over cold memory."""

NO_SHIFT = -1
NO_CHUNK_LIMIT = 1 << 60
UNLIMITED = 1 << 60
"""Unhashed blocks of a replica without prefix cache."""

# ---- sequence: a request in the running list
REQUEST = 0
ORIGIN = 1  # computed tokens minus step number, while it decodes
EVENT_STEP = 2  # last step before something about it changes; it sits in this bucket of the ring
LAST_STEP = 3  # the step of its last token
RING_NEXT = 4
RING_PREVIOUS = 5
RUNNING_NEXT = 6
RUNNING_PREVIOUS = 7
ORDER = 8  # admission number
COMPUTED = 9  # tokens whose KV is computed, while it prefills
TARGET = 10  # tokens to prefill: the prompt, and what was generated before a preemption
HIT = 11  # tokens served from the prefix cache at this admission
STATE = 12
HASHED = 13  # blocks on its path of the prefix tree that are in the cache by name
GROWS_IN = 14  # the resident whose end its output tokens extend
GROWER_NEXT = 15
GROWER_PREVIOUS = 16
IS_CONTENDED = 17
EMITTED = 18  # when its prefill yielded a token; while it is left out, and in the step that resumes it, its last one
RESUMED = 19  # the step that resumed it
CHUNK = 20  # tokens of its prefill in the step being fixed; of a decode, those drafted, where any drafts less
CHARGED_STEP = 21  # while it decodes: the first step whose own part is not in the ledger yet
JOINED_CLOCK = 22  # SHARE_CLOCK when it began to decode
FIRST_STEP = 23  # in which it decodes first
SEQUENCE_WORDS = 24

NEVER_RESUMED = -1
"""Of :data:`RESUMED`: no step has this number."""

PREFILL = 0
DECODE = 1
ENDING = 2  # its last step is fixed
EVICTED = 3  # preempted with its last step in flight: the token will come, the blocks are gone
LEFT_OUT = 4  # it decodes, but was left out of the step fixed last

# ---- window row of a sequence, where layers have a window
GIVEN_BACK = 0  # stretches in front that hold no blocks in layers with a window; not kept up while it is SETTLED
WINDOW_STATE = 1
WINDOW_ROW_WORDS = 2

INSIDE = 0  # it does not decode, or nothing lies behind its window yet
LOOKED_AT = 1  # it decodes and must be looked at in each step
SETTLED = 2  # it decodes and gives back a stretch every BLOCK_TOKENS steps

# ---- request
READY = 0  # arrival; once routed, arrival at the scheduler
LENGTHS = 1  # input tokens, output tokens << 32
FIRST_TOKEN = 2  # -1 until it is there; until then DELIVERED if the KV of the prompt came with the request
FINISH = 3  # -1 until it is there; the time of the last token while preempted
HISTORY = 4  # cached tokens, preemption count << 32, class << 51, SWAPPED, priority level << 56
PLACE = 5  # affinity key until routed, then replica number; status << 32
LINK = 6  # next in the queue, output tokens produced << 32
PREFIX = 7  # deepest node of the prefix tree, extent of its own tokens while preempted << 32
REQUEST_WORDS = 8

DELIVERED = -2

# ---- visit: what the world around the fleet knows of a request; one row per request, in the same order
FIRST_ARRIVAL = 0  # of its first attempt, -1 until then
ATTEMPTS = 1  # so far
KEY = 2  # affinity key
DEEPEST = 3  # deepest node of the prefix tree
FIRST_FOLLOWER = 4  # a request that its end releases
NEXT_FOLLOWER = 5  # the next one that the same end releases; the next in the line
DELAY = 6  # time between the end that releases it and its arrival
ROW = 7  # its place in the trace
NO_TOKEN = 8  # what its FIRST_TOKEN is before an attempt
WHO = 9  # bit 0: batch; tenant + 1 from bit 1 on
SESSION = 10  # row of its session; NONE without one, or without a door
DEGRADED = 11  # what was given up for its last attempt
LEFT = 12  # when it ended, well or not
CALLED = 13  # row of the pool that it calls
ENDS_LEFT = 14  # requests whose ends it still waits for
BOND = 15  # ON_SUCCESS, DOOMED, MARK, UNREAD
VISIT_WORDS = 16

ON_SUCCESS = 1  # it is sent only where all that it waits for ends well
DOOMED = 2  # something that it waits for did not
MARK = 4  # it is no request, and ends when it would come
UNREAD = 8  # its answer is read by nobody

# ---- patience: when the client of a request gives up; one row per request, in the same order
ALARM = 0  # when its client looks at the clock, or did last
ALARM_PLACE = 1  # its place in the heap of alarms, from 1 on; 0 while none is set
SENT = 2  # arrival of its attempt; once its client has given up, when SGLang heard of that
STAYS = 3  # how long its user stays, 0 for as long as it takes
STAYS_TOKENS = 4  # output tokens with which its user leaves, 0 for none
LEAVES = 5  # when its user leaves; once its client has given up, when SGLang lets it go
SERVED_BY = 6  # its sequence; NONE while it waits
VERDICT = 7  # next in FIRST_GONE, status << 32: 0 until its client gives up; READING behind its end
IS_STARTED = 8  # whether it has been admitted, or came with the KV of its prompt
DUE = 9  # time from its arrival after which the door refuses it if it still waits, 0 for never
PATIENCE_WORDS = 10

# ---- door: one; then level and time of each tenant's bucket, then the sessions
BATCH_IS_OPEN = 0
QUOTA_RATE = 1  # tokens per second
QUOTA_BURST = 2
SESSION_LIMIT = 3
CONTEXT_CAP = 4
OUTPUT_CAP = 5
SMALLER_INPUT = 6
SMALLER_OUTPUT = 7
OPEN_SESSIONS = 8  # those with a request in flight, or idle for less than SESSION_IDLE
SESSION_IDLE = 9
FIRST_IDLE = 10  # open sessions without a request in flight, the one idle for longest first
LAST_IDLE = 11
HAS_LANE = 12  # whether batch requests wait in a lane of their own
PATIENCE = 13  # of those at a replica, in microseconds
LANE_WAIT = 14  # of an interactive request, before batch gives way
LANE_OPENS = 15  # in microseconds
LANE_OPEN_FOR = 16
KEPT = 17  # batch requests that a replica gets however busy it is
DOOR_WORDS = 18
BUCKET_LEVEL = 0  # millionths of a token
BUCKET_TIME = 1  # in microseconds
BUCKET_WORDS = 2

# ---- ledger: what a request took, in all its attempts; one row per request, in the same order
SCHEDULED = 0  # when the scheduler first admitted it, -1 until then; of its last attempt
PREFILL_GPU = 1  # gpu-picoseconds of its prefill
CACHED_GPU = 2  # those of them for attention to tokens from the prefix cache
DECODE_GPU = 3
LOST_TOKENS = 4  # computed tokens whose KV its last preemption dropped, until it is admitted again
COMPUTED_AGAIN = 5  # tokens of which that was so and which no cache had
SWAP_COUNT = 6  # its preemptions by swap
LEDGER_WORDS = 7

# ---- session
IS_OPEN = 0
SESSION_IN_FLIGHT = 1
LAST_END = 2  # of its requests
LATER_IDLE = 3  # among the idle ones
EARLIER_IDLE = 4
SESSION_WORDS = 5

# ---- pool: the replicas that serve one model
FIRST_REPLICA = 0  # their numbers follow each other
LAST_REPLICA = 1
READY_COUNT = 2  # of them
TURN = 3  # replica number that ties fall to, one further after each request
ENTERED_COUNT = 4  # attempts that reached the router
REFUSED_COUNT = 5  # those turned away at once
OVERDUE_COUNT = 6  # those refused at their deadline
LOST_COUNT = 7  # those that were lost with their replica
CANCELLED_COUNT = 8  # those that their users left
TIMED_OUT_COUNT = 9  # those that clients gave up
WASTED_TOKENS = 10  # output tokens of attempts that came to nothing
LANE_FIRST = 11  # batch requests that wait at the gateway, linked
LANE_LAST = 12
ON_ITS_WAY = 13  # the one of them that is about to be sent
POOL_WORDS = 14

# ---- berth of a replica that shares its gpus
FREE_AT = 0  # index of the word that says when they are free, the same for all that share them
OWN_PS = 1  # what its last step took of them, its wait left out
HELD = 2  # first sequence that prefills in a step that is fixed and not on the gpus yet, HOLDS_DECODES without one
BERTH_WORDS = 4
HOLDS_DECODES = -1

# ---- node of the prefix tree
PARENT = 0
HOLDER = 1  # its resident at one of the replicas that have it in their cache, number of that << 32; NONE without
OTHERS = 2  # replicas that have it besides
FIRST_END = 3  # blocks from the root to its end, for each size of blocks in the fleet

# ---- resident: a node of which a replica has blocks in its cache, or is about to
NODE = 0
FIRST_EXTENT = 1  # the chain: the blocks that a look-up finds, in order and without a hole
LAST_EXTENT = 2
FIRST_SHADOW = 3  # copies of blocks of the chain, in order of creation; each takes over when the one before goes
LAST_SHADOW = 4
FIRST_GROWER = 5  # decoding sequences whose output extends the chain
IS_HOLDER = 6  # whether the node knows it, not the table
RESIDENT_WORDS = 8

# ---- extent: neighbouring blocks with the same users; a cache line, as whoever looks at one has seldom seen it lately
SPAN = 0  # position of the first block on its path from the root, of that behind the last << 32
USERS = 1  # sequences that hold it
RESIDENT = 2  # NONE for the tokens of one request alone
EXTENT_NEXT = 3  # in the chain, or among the shadows
EXTENT_PREVIOUS = 4
NEWER = 5  # among those nobody uses
OLDER = 6
OWNER = 7  # whether it is a shadow; the sequence that made it, or the preempted request whose tokens these are << 1
EXTENT_WORDS = 8

# ---- gauges of a replica at a pause
SAMPLE_RUNNING = 0
SAMPLE_WAITING = 1
SAMPLE_FREE_BLOCKS = 2
SAMPLE_ACTIVE_TOKENS = 3
SAMPLE_BUSY = 4  # time in steps up to the pause; what follows is of all steps fixed by then
SAMPLE_STEPS = 5
SAMPLE_STEPS_WITH_PREFILL = 6
SAMPLE_PREFILL_TOKENS = 7
SAMPLE_DECODE_TOKENS = 8
SAMPLE_READ_TOKENS = 9
SAMPLE_PREFILL_PAIRS = 10
SAMPLE_KEPT_TOKENS = 11
SAMPLE_PREEMPTIONS = 12
SAMPLE_SWAPS = 13
SAMPLE_SWAPPED_BLOCKS = 14
SAMPLE_RECOMPUTED_TOKENS = 15
SAMPLE_WORDS = 16

# ---- what the router knows of a replica
SCRAPED_WAITING = 0  # at the last scrape
SCRAPED_KV_PPM = 1  # blocks in use, in millionths
SCRAPED_IN_FLIGHT = 2
REQUEST_COST = 3  # by the weight of its group
UP_TO = 4  # longest prompt or last priority level that it serves, where requests are routed by that
RANK = 5  # place of its group by that bound
BATCH_SLOTS = 6  # requests up to which batch may fill it
BATCH_IN_FLIGHT = 7
SCRAPE_WORDS = 8
