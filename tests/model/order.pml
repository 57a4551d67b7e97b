/* Eager work: a trainer with two streams makes CALLS calls in any order. */
#include "device.pml"
#include "lanes.pml"
#include "memory.pml"



/* A call that is allowed now, of storage `what` on the stream `who` and with the block `where`. */
#define device_block (where < DEVICE && is_free[where])
#define host_block (where >= DEVICE && is_free[where])
#define no_block (where == 0)

init {
  byte what, who, where;
  d_step {
    read_environment();
    for (what : 0 .. BLOCKS - 1) { is_free[what] = true }
    for (what : 0 .. SLOTS - 1) { store[what].on_device = none; store[what].copy = none }
    what = 0
  }
end:
  do
  :: atomic { calls > 0 ->
    calls--;
    select(what : 0 .. SLOTS - 1);
    select(who : COMPUTE .. (created == 0 -> COMPUTE : LANES - 1)); /* alike until one is used */
    select(where : 0 .. BLOCKS - 1);
    if
    :: d_step { is_empty(what) && device_block -> allocate(what, who, where) }
    :: d_step { is_empty(what) && device_block -> allocate(what, who, where); kernel(what) }
    :: d_step { is_full(what) && who == store[what].home && no_block -> kernel(what) }
    :: d_step { is_full(what) && who != store[what].home && no_block ->
      trainer_joins(who, store[what].home); store[what].home = who; kernel(what) }
    :: d_step { is_full(what) && who == store[what].home && no_block -> drop(what, who) }
    :: d_step { is_full(what) && who != store[what].home && !store[what].used && no_block ->
      drop(what, who) }
    :: d_step { is_full(what) && who == store[what].home && store[what].filled && host_block ->
      commit(what, where) }
    :: d_step { is_full(what) && who == store[what].home && store[what].filled && no_block ->
      commit_stay(what) }
    :: d_step { store[what].stays && no_block -> restore_stay(what, who); kernel(what) }
    :: d_step { is_away(what) && device_block && who == COMPUTE -> reload(what, where) } /* ahead */
    :: d_step { is_away(what) && device_block ->
      reload(what, where); restore(what, who); kernel(what) }
    :: d_step { is_back(what) && no_block -> restore(what, who); kernel(what) }
    :: d_step { is_back(what) && no_block && who == COMPUTE -> evict(what) }
    :: d_step { store[what].saved && no_block && who == COMPUTE -> abandon(what) }
    :: else -> calls++
    fi;
    what = 0; who = 0; where = 0 }
  od
}
