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
  byte on_host;
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
byte flying_copy; /* ... and which access of the offload lane it is */
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

inline destroy(s) { /* storage.hpp: destroy */
  clear(store[s].last_use);
  store[s].number = 0;
  store[s].made_inside = false;
  store[s].filled = false;
  store[s].home = 0;
  store[s].used = false;
  store[s].offloaded = 0;
  store[s].reloaded = 0;
  store[s].handed_to = 0;
  store[s].handed_at = 0;
  store[s].group_lane = 0;
  store[s].group_at = 0;
  destroyed = true
}

/* storage.hpp: place */
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
/* storage.hpp: displace */
inline displace(s) {
  release(store[s].on_device, store[s].last_use);
  store[s].on_device = none
}

/* engine_memory.hpp: note_use */
inline note_use(s, user, copies, position) {
  store[s].last_use.at[copies] = MAX(store[s].last_use.at[copies], position);
  if
  :: user == store[s].handed_to || left_out(handed_forgotten)
  :: else ->
    add_past(store[s].last_use, store[s].handed_to, store[s].handed_at);
    store[s].last_use.at[RELOAD] = MAX(store[s].last_use.at[RELOAD], store[s].reloaded)
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

/* engine_memory.hpp: allocate */
inline allocate(s, user, block) {
  created++;
  store[s].number = created;
  store[s].made_inside = capturing;
  store[s].handle = true;
  store[s].home = user;
  place(s, block, user, device_reuse)
}

/* engine.hpp: drop; engine_memory.hpp: forget_handle */
inline drop(s, user) {
  record(user);
  note_use(s, user, user, recorded[user]);
  store[s].handle = false;
  displace(s);
  destroy(s)
}

/* engine_forward.hpp: commit, of a group that leaves; engine_offload.hpp: collect, offload, cap */
inline commit(s, host) {
  g = store[s].home;
  store[s].group_lane = g;
  store[s].group_at = recorded[g] + 1;
  is_free[host] = false;
  join_all(OFFLOAD, ready[host], host_reuse);
  store[s].on_host = host;
  store[s].reloaded = 0;
  record(g);
  join(OFFLOAD, g, recorded[g], producer);
  read(store[s].on_device, OFFLOAD, store[s].number);
  write(host, OFFLOAD, store[s].number);
  record(OFFLOAD);
  store[s].offloaded = recorded[OFFLOAD];
  note_use(s, g, OFFLOAD, recorded[OFFLOAD]);
  if
  :: capped && flying != 0 ->
    join(g, OFFLOAD, flying, cap);
    assert(flying_copy <= truth[CLOCK(g)].at[OFFLOAD]) /* no more copies under way than the cap says */
  :: else
  fi;
  flying = (capped -> recorded[OFFLOAD] : 0);
  flying_copy = (capped -> truth[CLOCK(OFFLOAD)].at[OFFLOAD] : 0);
  store[s].handle = false;
  store[s].saved = true;
  holds[AREA(store[s].on_device, g)] = garbage; /* not to be found there again by luck */
  displace(s)
}

/* engine_forward.hpp: commit, of a group that stays; engine_offload.hpp: offload */
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

/* engine_reload.hpp: try_reload */
inline reload(s, block) {
  join(RELOAD, OFFLOAD, store[s].offloaded, own_offload);
  place(s, block, RELOAD, reload_reuse);
  read(store[s].on_host, RELOAD, store[s].number);
  write(block, RELOAD, store[s].number);
  record(RELOAD);
  store[s].reloaded = recorded[RELOAD]
}

/* engine_backward.hpp: restore of what is on the device again, fetch and hand_over */
inline restore(s, user) {
  join(user, RELOAD, store[s].reloaded, consumer);
  join_group(s, user);
  hand_to(s, user);
  store[s].handle = true;
  store[s].home = user;
  store[s].used = false;
  store[s].saved = false;
  release_behind(store[s].on_host, RELOAD, store[s].reloaded); /* engine_memory.hpp: forget_save */
  store[s].on_host = none
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

/* engine_memory.hpp: evict_one, take_back; the device memory of what is there ahead of its use */
inline evict(s) {
  if
  :: left_out(reload_forgotten)
  :: else -> store[s].last_use.at[RELOAD] = MAX(store[s].last_use.at[RELOAD], store[s].reloaded)
  fi;
  displace(s)
}

/* engine_backward.hpp: end_chunk of a pass that is given up; engine_memory.hpp: forget_save */
inline abandon(s) {
  if
  :: store[s].reloaded > 0 -> x = RELOAD; y = store[s].reloaded
  :: else -> x = OFFLOAD; y = store[s].offloaded
  fi;
  release_behind(store[s].on_host, x, y);
  store[s].on_host = none;
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
