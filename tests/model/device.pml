/* What a device does with streams, events, memory and captures: the truth that the rules in lanes.pml
 * and memory.pml are measured against. The orders that a device may choose need not be run through:
 * a clock for each stream says what is certain to have ended before what the stream is given next,
 * so one run of the trainer's calls stands for all of them. The properties are the asserts here.
 */
#ifndef PLACES
#define PLACES 1  /* what is offloaded to: the host, a neighbour's memory */
#endif
#define OFFLOAD(place) (2 * (place))  /* lanes: the two copy streams of each place, */
#define RELOAD(place) (2 * (place) + 1)
#define COMPUTE (2 * PLACES)          /* and those of the trainer */
#ifndef LANES
#define LANES 4
#endif
#ifndef DEVICE
#define DEVICE 2  /* blocks: those of the device, and behind them one of each place */
#endif
#define BLOCKS (DEVICE + PLACES)
#define PLACE_OF(block) (block - DEVICE)
#ifndef RING
#define RING 1  /* events kept for each lane; lanes.hpp: ring, 1024 there */
#endif
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

typedef clock { byte at[LANES] };

/* lanes.hpp: kept_event. `truth` and `capture` are what the device knows of it, `known` the table. */
typedef kept_event { clock known; clock truth; byte capture };
kept_event events[LANES * RING];

/* Of each lane, eager and (from LANES on) in the capture under way: how many of every lane's accesses
 * end before what comes next here; its own entry counts its own. */
clock truth[2 * LANES];
byte capture;       /* the number of the one under way; 0: none */
bool inside[LANES]; /* the stream takes part in it */
#define CLOCK(lane) (lane + (inside[lane] -> LANES : 0))

/* Of each block, eager and in the capture: each lane's latest access, its latest write, and which
 * storage's bytes are there, by number. */
clock touched[2 * BLOCKS];
clock written[2 * BLOCKS];
byte holds[2 * BLOCKS];
#define AREA(block, lane) (block + (inside[lane] -> BLOCKS : 0))
byte needs[BLOCKS]; /* what the capture expects to find there when it is launched; 0: nothing */

hidden byte d, e, f, g; /* scratch */

inline merge(into, from) {
  for (d : 0 .. LANES - 1) { into.at[d] = MAX(into.at[d], from.at[d]) }
}
inline copy_clock(into, from) {
  for (d : 0 .. LANES - 1) { into.at[d] = from.at[d] }
}
inline clear(into) {
  for (d : 0 .. LANES - 1) { into.at[d] = 0 }
}

inline device_record(lane, event) {
  copy_clock(events[event].truth, truth[CLOCK(lane)]);
  events[event].capture = (inside[lane] -> capture : 0)
}

/* In a capture only its own events may be waited for, and outside none of any capture. A stream that
 * waits for an event of the capture under way takes part from then on. */
inline device_wait(lane, event) {
  if
  :: events[event].capture != 0 ->
    assert(events[event].capture == capture); /* else it waits for what nobody will record */
    if
    :: !inside[lane] -> inside[lane] = true; truth[CLOCK(lane)].at[lane] = 1
    :: else
    fi
  :: else -> assert(!inside[lane]) /* the event lies outside */
  fi;
  merge(truth[CLOCK(lane)], events[event].truth)
}

/* No access before its fence: nobody reads what is being written, or writes what is in use. */
inline read(block, lane, whose) {
  assert(inside[lane] == (capture != 0)); /* what is given to a stream in a capture is captured */
  e = CLOCK(lane);
  f = AREA(block, lane);
  for (d : 0 .. LANES - 1) {
    assert(d == lane || written[f].at[d] <= truth[e].at[d])
  }
  if
  :: inside[lane] && holds[f] == 0 ->
    assert(needs[block] == 0 || needs[block] == whose);
    needs[block] = whose
  :: else -> assert(holds[f] == whose) /* the right bytes */
  fi;
  truth[e].at[lane]++;
  touched[f].at[lane] = truth[e].at[lane]
}
inline write(block, lane, whose) {
  assert(inside[lane] == (capture != 0));
  e = CLOCK(lane);
  f = AREA(block, lane);
  for (d : 0 .. LANES - 1) {
    assert(d == lane || touched[f].at[d] <= truth[e].at[d]);
    touched[f].at[d] = 0; /* who comes behind this write comes behind those as well */
    written[f].at[d] = 0
  }
  truth[e].at[lane]++;
  touched[f].at[lane] = truth[e].at[lane];
  written[f].at[lane] = truth[e].at[lane];
  holds[f] = whose
}

/* An order between two streams that the trainer makes with an event of its own: the device keeps it,
 * the table knows nothing of it. */
inline trainer_joins(lane, other) {
  if
  :: inside[other] && !inside[lane] -> inside[lane] = true; truth[CLOCK(lane)].at[lane] = 1
  :: else
  fi;
  merge(truth[CLOCK(lane)], truth[CLOCK(other)])
}
