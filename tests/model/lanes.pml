/* memory/lanes.hpp: what the offloader believes. Each rule has the name of its function there; a rule
 * is broken on purpose by -DBREAK=<name>, and run.sh asks that each such model fails. */
#define nothing 0
#define producer 1       /* the joins, as in device.hpp: join_site */
#define device_reuse 2
#define reload_reuse 3
#define host_reuse 4
#define own_offload 5
#define consumer 6
#define cap 7
#define launch 8
#define after_launch 9
#define fork 10
#define join_back 11
#define after_capture 12
#define new_stream 13
#define overrun_is_over 20     /* a ticket older than the ring counts as ended */
#define overrun_is_newest 21   /* the wait for the oldest event kept is noted as one for the newest */
#define known_at_wait 22       /* a lane is known as of the wait, not as of its record */
#define work_not_recorded 23   /* join_work waits for a position that nobody has recorded */
#define handed_forgotten 24    /* note_use forgets what the lane that was handed the memory waits for */
#define copy_forgotten 25      /* forget_save frees the device memory without the reload's ticket */
#define reload_forgotten 26    /* take_back does */
#define begin_unmet 30         /* begin_capture counts nothing before it as joined */
#define eager_work_joined 32   /* join_work in a capture waits for work from before it */
#define new_knows_nothing 33   /* a lane that is new in a capture counts nothing before it as joined */
#define new_knows_all 34       /* ... or also what the capture has recorded */
#define stay_not_recorded 35   /* a commit that stays records nothing in a capture */
#define launch_anywhere 36     /* rule 1: a launch asks for no layout */
#define launch_by_address 37   /* rule 1: it compares addresses, not numbers */
#define launch_after_death 38  /* rule 1: it does not look who is alive still */
#define eager_anywhere 39      /* rule 2: an eager call asks for nothing */
#define reloads_kept 40        /* rule 2: reloads of a capture that has not run are believed */
#define failed_believed 41     /* what a failed capture did is believed */
#define give_up_asks 42        /* rule 3: giving up is refused like another call */
#ifndef BREAK
#define BREAK nothing
#endif
#define left_out(what) (BREAK == what && BREAK != nothing)

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

/* lanes.hpp: past, of a position: all that `lane` had recorded or waited for then, or more */
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
    for (z : 0 .. LANES - 1) { known[y].at[z] = recorded[z] }
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
    wait(OFFLOAD, from, recorded[from]);
    wait(RELOAD, from, recorded[from])
  fi
}
/* lanes.hpp: join_back */
inline lanes_join_back(into) {
  if
  :: left_out(join_back)
  :: else ->
    record(OFFLOAD); wait(into, OFFLOAD, recorded[OFFLOAD]);
    record(RELOAD); wait(into, RELOAD, recorded[RELOAD])
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
