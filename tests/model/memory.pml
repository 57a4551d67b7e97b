/* Blocks with fences, storages, and the calls that move them: memory/block.hpp, storage.hpp and the
 * engine. Storages live in slots; each new one has a number of its own. Which free block a source
 * hands out, and when something is reloaded or evicted, is left open: every choice is tried, so that
 * the rules hold under any fit policy, eviction order and plan. */
#define SLOTS 2
#define none 255
#define garbage 255

bool is_free[BLOCKS];  /* block.hpp: release and take */
clock ready[BLOCKS];

typedef storage { /* storage.hpp: storage */
  byte number;    /* 0: nobody refers to it */
  bool handle;
  bool saved;      /* a group saved it, and it left */
  bool stays;      /* a group saved it, and it stayed */
  bool made_inside; /* storage.hpp: captured */
  bool filled;     /* the trainer has written it */
  byte home;       /* where its handle was used last */
  bool used;       /* since it was handed out */
  byte on_device;
  byte copy;       /* the block of the place */
  byte out;        /* the offload lane of the latest copy's place, ... */
  byte back;       /* ... and its reload lane */
  byte offloaded;  /* positions on the copy lanes */
  byte reloaded;
  clock last_use;
  byte handed_to;
  byte handed_at;
  byte group_lane; /* group.hpp: lane, position */
  byte group_at;
};
storage store[SLOTS];
byte created;
byte flying;      /* window.hpp, with a cap of one group: the offload in flight, ... */
byte flying_copy; /* ... which access of its offload lane it is, ... */
byte flying_to;   /* ... and that lane */
hidden byte reuse; /* scratch */
bool destroyed;   /* a storage, since the latest launch */

/* The first slot that is free: all are alike. */
#define is_empty(s) (store[s].number == 0 && (s == 0 || store[0].number != 0))
#define is_full(s) (store[s].handle && !store[s].stays)
#define is_away(s) (store[s].saved && store[s].on_device == none)
#define is_back(s) (store[s].saved && store[s].on_device != none)

inline release(block, after) {
  is_free[block] = true;
  copy_clock(ready[block], after)
}
inline release_behind(block, copies, position) {
  is_free[block] = true;
  clear(ready[block]);
  ready[block].at[copies] = position
}

inline destroy(s) { /* storages.hpp: destroy */
  clear(store[s].last_use);
  store[s].number = 0;
  store[s].made_inside = false;
  store[s].filled = false;
  store[s].home = 0;
  store[s].used = false;
  store[s].out = 0;
  store[s].back = 0;
  store[s].offloaded = 0;
  store[s].reloaded = 0;
  store[s].handed_to = 0;
  store[s].handed_at = 0;
  store[s].group_lane = 0;
  store[s].group_at = 0;
  destroyed = true
}

/* storages.hpp: place */
inline place(s, block, waiter, site) {
  is_free[block] = false;
  join_all(waiter, ready[block], site);
  store[s].on_device = block;
  hand_to(s, waiter)
}
/* engine.hpp: hand_to */
inline hand_to(s, waiter) {
  store[s].handed_to = waiter;
  store[s].handed_at = recorded[waiter] + 1
}
/* storages.hpp: displace */
inline displace(s) {
  release(store[s].on_device, store[s].last_use);
  store[s].on_device = none
}

/* engine/memory.hpp: note_use */
inline note_use(s, user, copies, position) {
  store[s].last_use.at[copies] = MAX(store[s].last_use.at[copies], position);
  if
  :: user == store[s].handed_to || left_out(handed_forgotten)
  :: else ->
    add_past(store[s].last_use, store[s].handed_to, store[s].handed_at);
    store[s].last_use.at[store[s].back] = MAX(store[s].last_use.at[store[s].back], store[s].reloaded)
  fi
}

/* A kernel of the trainer that reads, if there is something, and writes. */
inline kernel(s) {
  if
  :: store[s].filled -> read(store[s].on_device, store[s].home, store[s].number)
  :: else
  fi;
  write(store[s].on_device, store[s].home, store[s].number);
  store[s].filled = true;
  store[s].used = true
}

/* engine/memory.hpp: allocate */
inline allocate(s, user, block) {
  created++;
  store[s].number = created;
  store[s].made_inside = capturing;
  store[s].handle = true;
  store[s].home = user;
  place(s, block, user, device_reuse)
}

/* engine/memory.hpp: drop, forget_handle */
inline drop(s, user) {
  record(user);
  note_use(s, user, user, recorded[user]);
  store[s].handle = false;
  displace(s);
  destroy(s)
}

/* engine/commit.hpp: commit, of a group that leaves; collect, offload, cap */
inline commit(s, block) {
  g = store[s].home;
  store[s].group_lane = g;
  store[s].group_at = recorded[g] + 1;
  store[s].out = OFFLOAD(PLACE_OF(block));
  store[s].back = RELOAD(PLACE_OF(block));
  is_free[block] = false;
  reuse = (block == DEVICE -> host_reuse : peer_reuse);
  join_all(store[s].out, ready[block], reuse);
  store[s].copy = block;
  store[s].reloaded = 0;
  record(g);
  join(store[s].out, g, recorded[g], producer);
  read(store[s].on_device, store[s].out, store[s].number);
  write(block, store[s].out, store[s].number);
  record(store[s].out);
  store[s].offloaded = recorded[store[s].out];
  note_use(s, g, store[s].out, recorded[store[s].out]);
  if
  :: capped && flying != 0 && !(left_out(cap_of_one_place) && flying_to != store[s].out) ->
    join(g, flying_to, flying, cap)
  :: else
  fi;
  /* no more copies under way than the cap says */
  assert(!capped || flying == 0 || flying_copy <= truth[CLOCK(g)].at[flying_to]);
  flying = (capped -> recorded[store[s].out] : 0);
  flying_copy = (capped -> truth[CLOCK(store[s].out)].at[store[s].out] : 0);
  flying_to = (capped -> store[s].out : 0);
  store[s].handle = false;
  store[s].saved = true;
  holds[AREA(store[s].on_device, g)] = garbage; /* not to be found there again by luck */
  displace(s)
}

/* engine/commit.hpp: commit, of a group that stays; offload */
inline commit_stay(s) {
  g = store[s].home;
  store[s].group_lane = g;
  store[s].group_at = recorded[g] + 1;
  if
  :: capturing && !left_out(stay_not_recorded) -> record(g)
  :: else
  fi;
  store[s].stays = true
}

/* engine/reload.hpp: try_reload */
inline join_offload(s) {
  if
  :: left_out(place_forgotten) ->
    x = MIN(store[s].offloaded, recorded[0]);
    if
    :: x > 0 -> join(store[s].back, 0, x, own_offload) /* lane 0: offloads to the host */
    :: else
    fi
  :: else -> join(store[s].back, store[s].out, store[s].offloaded, own_offload)
  fi
}
inline reload(s, block) {
  join_offload(s);
  place(s, block, store[s].back, reload_reuse);
  read(store[s].copy, store[s].back, store[s].number);
  write(block, store[s].back, store[s].number);
  record(store[s].back);
  store[s].reloaded = recorded[store[s].back]
}

/* engine/restore.hpp: restore of what is on the device again, fetch and hand_over */
inline restore(s, user) {
  join(user, store[s].back, store[s].reloaded, consumer);
  join_group(s, user);
  hand_to(s, user);
  store[s].handle = true;
  store[s].home = user;
  store[s].used = false;
  store[s].saved = false;
  release_behind(store[s].copy, store[s].back, store[s].reloaded); /* engine/memory.hpp: forget_save */
  store[s].copy = none
}
/* ... and of what never left */
inline restore_stay(s, user) {
  join_group(s, user);
  store[s].home = user;
  store[s].stays = false
}
inline join_group(s, user) {
  if
  :: user != store[s].group_lane -> join_work(user, store[s].group_lane, store[s].group_at, consumer)
  :: else
  fi
}

/* engine/memory.hpp: evict_one, take_back; the device memory of what is there ahead of its use */
inline evict(s) {
  if
  :: left_out(reload_forgotten)
  :: else ->
    store[s].last_use.at[store[s].back] = MAX(store[s].last_use.at[store[s].back], store[s].reloaded)
  fi;
  displace(s)
}

/* engine/passes.hpp: end_chunk of a pass that is given up; engine/memory.hpp: forget_save */
inline abandon(s) {
  if
  :: store[s].reloaded > 0 -> x = store[s].back; y = store[s].reloaded
  :: else -> x = store[s].out; y = store[s].offloaded
  fi;
  release_behind(store[s].copy, x, y);
  store[s].copy = none;
  store[s].saved = false;
  if
  :: store[s].on_device != none ->
    if
    :: left_out(copy_forgotten)
    :: else -> store[s].last_use.at[x] = MAX(store[s].last_use.at[x], y)
    fi;
    displace(s)
  :: else
  fi;
  destroy(s)
}
