/* memory/lanes.hpp: what the offloader believes. Each rule has the name of its function there; run.sh
 * breaks each of those listed here on purpose, in the model that is named, and asks that it fails. */
#define nothing 0
/* The joins of device.hpp: join_site */
#define producer 1            /* order: an offload waits for the kernel that wrote its source */
#define device_reuse 2        /* order: compute waits for the last user of a device block */
#define reload_reuse 3        /* order: a reload does */
#define host_reuse 4          /* order: an offload waits for the reload out of its block of the host, */
#define peer_reuse 14         /* places: ... or of a neighbour */
#define own_offload 5         /* order: a reload waits for the offload of the same storage */
#define consumer 6            /* order: a restore waits for the reload, or for who committed */
#define cap 7                 /* order: a commit waits where too many offloads are in flight */
#define launch 8              /* capture: a graph waits for what all streams were given before */
#define after_launch 9        /* capture: eager work waits for the graphs before it */
#define fork 10               /* capture: both copy streams enter a capture */
#define join_back 11          /* capture: both are joined before it ends */
#define after_capture 12      /* capture: eager work after one waits for eager work before it */
#define new_stream 13         /* capture: a stream that is new after one waits for what came before */
/* Rules of lanes, fences and blocks */
#define overrun_is_over 20    /* ring: a ticket older than the ring counts as ended */
#define overrun_is_newest 21  /* ring: the wait for the oldest event kept is noted as for the newest */
#define known_at_wait 22      /* ring: a lane is known as of the wait, not as of its record */
#define work_not_recorded 23  /* order: join_work waits for a position that nobody has recorded */
#define handed_forgotten 24   /* order: note_use forgets the lane that was handed the memory */
#define copy_forgotten 25     /* order: forget_save frees device memory without the latest copy's ticket */
#define reload_forgotten 26   /* order: take_back frees it without the reload's */
#define place_forgotten 27    /* places: a reload waits for an offload to the host, wherever it went */
#define cap_of_one_place 28   /* places: the cap of a module looks at the place of its group alone */
/* Rules at the borders of a capture */
#define begin_unmet 30        /* capture: begin_capture counts nothing before it as joined */
#define eager_work_joined 31  /* capture: join_work waits inside for work from before */
#define new_knows_nothing 32  /* capture: a lane that is new inside counts nothing before as joined */
#define new_knows_all 33      /* capture: ... or also what was recorded inside */
#define stay_not_recorded 34  /* capture: a commit that stays records no position inside */
#define launch_anywhere 35    /* capture: rule 1, a launch asks for no layout */
#define launch_by_address 36  /* capture: rule 1, it compares addresses, not numbers */
#define launch_after_death 37 /* capture: rule 1, it does not look whether all are alive */
#define launch_on_reloads 38  /* capture: rule 1, it believes reloads of a graph that has not run */
#define eager_anywhere 40     /* capture: rule 2, an eager call asks for nothing */
#define reloads_kept 41       /* capture: rule 2, reloads of a capture that has not run are believed */
#define failed_believed 42    /* capture: rule 2, what a failed capture did is believed */
#define give_up_asks 43       /* capture: rule 3, giving up asks like another call */

byte broken; /* the rule that is left out */
#define left_out(what) (broken == what && broken != nothing)
byte calls;  /* that the trainer may still make */
bool capped; /* a cap of one group */
c_decl { \#include <stdlib.h> }
inline read_environment() {
  c_code {
    now.broken = atoi(getenv("BREAK"));
    now.calls = atoi(getenv("CALLS"));
    now.capped = getenv("CAPPED") != NULL;
  }
}

byte recorded[LANES]; /* lanes.hpp: lane_state */
clock known[LANES];
bool there[LANES]; /* the lane exists: its stream has been seen */
bool capturing;
bool bounded; /* there has been a capture */
clock before_capture;

hidden byte oldest, actual, r, w, x, y, z; /* scratch */

/* lanes.hpp: record */
inline record(lane) {
  r = lane * RING + recorded[lane] % RING;
  device_record(lane, r);
  copy_clock(events[r].known, known[lane]);
  recorded[lane]++
}

/* lanes.hpp: wait. A ticket older than the ring is waited for through the oldest event still kept. */
inline wait(waiter, other, position) {
  assert(position >= 1 && position <= recorded[other]); /* somebody has recorded it */
  oldest = (recorded[other] > RING -> recorded[other] - RING + 1 : 1);
  actual = MAX(position, oldest);
  w = other * RING + (actual - 1) % RING;
  if
  :: left_out(overrun_is_over) && position < oldest
  :: else -> device_wait(waiter, w)
  fi;
  if
  :: left_out(known_at_wait) -> merge(known[waiter], known[other])
  :: else -> merge(known[waiter], events[w].known)
  fi;
  actual = (left_out(overrun_is_newest) && position < oldest -> recorded[other] : actual);
  known[waiter].at[other] = MAX(known[waiter].at[other], actual)
}

#define joined(waiter, other, position) (other == waiter || position <= known[waiter].at[other])

/* lanes.hpp: join, of a ticket */
inline join(waiter, other, position, site) {
  if
  :: joined(waiter, other, position) || left_out(site)
  :: else -> wait(waiter, other, position)
  fi
}
/* lanes.hpp: join_all, of a fence */
inline join_all(waiter, until, site) {
  for (x : 0 .. LANES - 1) { join(waiter, x, until.at[x], site) }
}

/* lanes.hpp: join_work */
inline join_work(waiter, other, position, site) {
  if
  :: joined(waiter, other, position)
  :: else ->
    if
    :: position <= recorded[other] || left_out(work_not_recorded) -> join(waiter, other, position, site)
    :: else ->
      if
      :: capturing && !left_out(eager_work_joined) /* every launch comes behind it anyway */
      :: else -> record(other); join(waiter, other, position, site)
      fi
    fi
  fi
}

/* clocks.hpp: past, of a position: all that `lane` had recorded or waited for then, or more */
inline add_past(into, lane, position) {
  if
  :: position > recorded[lane] ->
    merge(into, known[lane]);
    into.at[lane] = MAX(into.at[lane], recorded[lane])
  :: else -> into.at[lane] = MAX(into.at[lane], position)
  fi
}

/* ---- around a capture ---- */

/* lanes.hpp: assume_met */
inline assume_met() {
  for (y : 0 .. LANES - 1) {
    for (z : 0 .. LANES - 1) { known[y].at[z] = (there[y] -> recorded[z] : 0) }
  }
}
/* lanes.hpp: gather */
inline gather(into, site) {
  if
  :: left_out(site) -> assume_met()
  :: else ->
    for (y : 0 .. LANES - 1) {
      if
      :: y != into && there[y] -> record(y); wait(into, y, recorded[y])
      :: else
      fi
    }
  fi
}
/* lanes.hpp: meet */
inline meet(site) {
  if
  :: left_out(site) -> assume_met()
  :: else ->
    for (y : 0 .. LANES - 1) {
      if
      :: there[y] -> record(y)
      :: else
      fi
    }
    for (y : 0 .. LANES - 1) {
      for (z : 0 .. LANES - 1) {
        if
        :: y != z && there[y] && there[z] -> wait(y, z, recorded[z])
        :: else
        fi
      }
    }
  fi
}
/* lanes.hpp: begin_capture */
inline lanes_begin(from) {
  capturing = true;
  bounded = true;
  if
  :: left_out(begin_unmet)
  :: else -> assume_met()
  fi;
  for (y : 0 .. LANES - 1) { before_capture.at[y] = recorded[y] }
  if
  :: left_out(fork)
  :: else ->
    record(from);
    for (y : 0 .. COMPUTE - 1) { wait(y, from, recorded[from]) };
    skip
  fi
}
/* lanes.hpp: join_back */
inline lanes_join_back(into) {
  if
  :: left_out(join_back)
  :: else ->
    for (y : 0 .. COMPUTE - 1) { record(y); wait(into, y, recorded[y]) };
    skip
  fi
}
/* lanes.hpp: end_capture */
inline lanes_end() {
  capturing = false;
  assume_met();
  meet(after_capture)
}
/* lanes.hpp: of, add */
inline lane_of(lane) {
  if
  :: there[lane]
  :: else ->
    there[lane] = true;
    if
    :: capturing && !left_out(new_knows_nothing) ->
      copy_clock(known[lane], before_capture);
      if
      :: left_out(new_knows_all) ->
        for (y : 0 .. LANES - 1) { known[lane].at[y] = recorded[y] }
      :: else
      fi
    :: !capturing && bounded -> gather(lane, new_stream)
    :: else
    fi
  fi
}
