/* Captures: engine/capture.hpp and engine/memory_layout.hpp. The trainer mixes eager calls, captures
 * that succeed or fail, and launches in any order; a call that is refused does nothing. */
#ifndef DEVICE
#define DEVICE 1
#endif
#include "device.pml"
#include "lanes.pml"
#include "memory.pml"
#include "layouts.pml"
#include "graphs.pml"

byte captures; /* so far */
byte origin; /* the stream that the capture began on */

layout before_it;  /* engine.hpp: layout_before_ */
layout left;       /* engine.hpp: truth_, where graphs left things; it counts where ... */
bool graphs_moved; /* ... handles may say otherwise: truth_ is not null */
bool replayed;     /* engine.hpp: replayed_, replayed_on_ */
byte replayed_on;

hidden layout handles; /* as they say it now */
hidden byte may;       /* what a check has found: the call is allowed */

/* engine/capture.hpp: forget_reloads */
inline forget_reloads() {
  for (k : 0 .. SLOTS - 1) {
    if
    :: is_back(k) -> evict(k)
    :: else
    fi
  }
}

/* buffer.hpp: lane_to_release; engine/capture.hpp: meet_after_launch */
inline arrive(user) {
  if
  :: replayed -> meet(after_launch); replayed = false; replayed_on = 0
  :: else
  fi;
  lane_of(user)
}
/* buffer.hpp: lane_of, of a call that takes or reads memory; engine/capture.hpp: expect_truth */
inline settle(user) {
  arrive(user);
  may = true;
  if
  :: !capturing && graphs_moved ->
    take_layout(handles, false);
    agrees(handles, left);
    may = (yes || left_out(eager_anywhere));
    if
    :: may ->
      take_layout(handles, true);
      agrees(handles, left);
      if
      :: yes || left_out(reloads_kept)
      :: else -> forget_reloads()
      fi;
      graphs_moved = false;
      clear_layout(left)
    :: else
    fi
  :: else
  fi
}
/* A call that gives up: rule 3. */
inline giving_up(user) {
  if
  :: left_out(give_up_asks) -> settle(user)
  :: else -> arrive(user); may = true
  fi;
  assert(may) /* there is always a way out */
}

/* engine/capture.hpp: begin */
inline begin(user) {
  arrive(user);
  if
  :: graphs_moved ->
    take_layout(handles, true);
    agrees(handles, left);
    if
    :: yes -> graphs_moved = false; clear_layout(left)
    :: else
    fi
  :: else
  fi;
  take_layout(before_it, true);
  captures++;
  capture = captures;
  origin = user;
  inside[user] = true;
  truth[CLOCK(user)].at[user] = 1;
  for (k : 0 .. SLOTS - 1) { /* every launch comes behind what was eager, on whichever stream */
    store[k].home = (store[k].number != 0 -> user : 0)
  }
  lanes_begin(user)
}
/* A stream of the trainer's takes part. */
inline fork_stream(user) { trainer_joins(user, origin); skip }

/* engine/capture.hpp: end */
inline end_capture() {
  lanes_join_back(origin);
  device_end(false);
  lanes_end();
  take_layout(handles, true);
  copy_layout(graphs[j].before, before_it);
  copy_layout(graphs[j].after, handles);
  compare(handles, before_it);
  if
  :: !yes && !graphs_moved -> copy_layout(left, before_it); graphs_moved = true /* nothing has run */
  :: else
  fi;
  clear_layout(before_it);
  origin = 0
}
/* engine/capture.hpp: abandon, leave */
inline abandon_capture() {
  device_end(true);
  lanes_end();
  forget_reloads();
  if
  :: !graphs_moved && !left_out(failed_believed) -> copy_layout(left, before_it); graphs_moved = true
  :: else
  fi;
  clear_layout(before_it);
  origin = 0
}

/* engine/capture.hpp: expect_layout; `may` says whether. Rule 1. */
inline expect_layout(which) {
  take_layout(handles, true);
  compare(left, graphs[which].before);
  alike = (graphs_moved && yes);
  all_alive(graphs[which].before, handles);
  may = ((alike && replayed && !destroyed) || (alike && yes) || left_out(launch_anywhere));
  if
  :: may
  :: else ->
    take_layout(handles, false);
    agrees(handles, left);
    may = (!graphs_moved || yes); /* what is needed is there, ... */
    compare(handles, graphs[which].before);
    alike = (may && yes); /* ... and all that the graph wants, or will be without ... */
    take_layout(handles, true);
    agrees(handles, left);
    may = (may && (!graphs_moved || yes || left_out(launch_on_reloads)));
    compare(handles, graphs[which].before);
    may = (may && yes); /* ... or with the reloads */
    if
    :: !may && alike -> forget_reloads(); may = true
    :: else
    fi
  fi
}
/* graph.hpp: launch; engine/capture.hpp: launch */
inline replay(which, user) {
  lane_of(user);
  expect_layout(which);
  if
  :: may ->
    if
    :: !replayed || replayed_on != user -> gather(user, launch)
    :: else
    fi;
    device_replay(which, user);
    copy_layout(left, graphs[which].after);
    graphs_moved = true;
    destroyed = false;
    replayed_on = user;
    replayed = true
  :: else
  fi
}

#define device_block (where < DEVICE && is_free[where])
#define host_block (where >= DEVICE && is_free[where])
#define no_block (where == 0)
#define takes_part (inside[who] == capturing)

init {
  byte what, who, where;
  d_step {
    read_environment();
    for (what : 0 .. BLOCKS - 1) { is_free[what] = true }
    for (what : 0 .. SLOTS - 1) { store[what].on_device = none; store[what].copy = none }
    what = 0;
    for (what : 0 .. COMPUTE - 1) { there[what] = true }; what = 0
  }
end:
  do
  :: atomic { calls > 0 ->
    calls--;
    select(what : 0 .. SLOTS - 1);
    select(who : COMPUTE .. (created == 0 && captures == 0 -> COMPUTE : LANES - 1)); /* alike until one is used */
    select(where : 0 .. BLOCKS - 1);
    if
    :: d_step { takes_part && is_empty(what) && device_block ->
      settle(who);
      if
      :: may -> allocate(what, who, where); kernel(what)
      :: else
      fi }
    :: d_step { takes_part && is_full(what) && who == store[what].home && host_block ->
      settle(who);
      if
      :: may -> commit(what, where)
      :: else
      fi }
    :: d_step { takes_part && is_full(what) && who == store[what].home && no_block ->
      settle(who);
      if
      :: may -> commit_stay(what)
      :: else
      fi }
    :: d_step { takes_part && store[what].stays && no_block ->
      settle(who);
      if
      :: may -> restore_stay(what, who); kernel(what)
      :: else
      fi }
    :: d_step { takes_part && is_away(what) && device_block && there[who] -> /* ahead */
      settle(who);
      if
      :: may -> reload(what, where)
      :: else
      fi }
    :: d_step { takes_part && is_away(what) && device_block ->
      settle(who);
      if
      :: may && is_away(what) -> reload(what, where); restore(what, who); kernel(what)
      :: else
      fi }
    :: d_step { takes_part && is_back(what) && no_block ->
      settle(who);
      if
      :: may && is_back(what) -> restore(what, who); kernel(what)
      :: else
      fi }
    :: d_step { takes_part && is_full(what) && who == store[what].home && no_block ->
      giving_up(who); drop(what, who) }
    :: d_step { takes_part && store[what].saved && no_block && who == COMPUTE ->
      giving_up(who); abandon(what) }
    :: d_step { !capturing && captures < CAPTURES && what == 0 && no_block -> begin(who) }
    :: d_step { capturing && !inside[who] && what == 0 && no_block -> fork_stream(who) }
    :: d_step { capturing && what == 0 && no_block && who == COMPUTE -> end_capture() }
    :: d_step { capturing && what == 0 && no_block && who == COMPUTE -> abandon_capture() }
    :: d_step { !capturing && what < captures && graphs[what + 1].there && no_block ->
      replay(what + 1, who) }
    :: else -> calls++
    fi;
    what = 0; who = 0; where = 0 }
  od
}
