/* The ring of events and the short cuts alone, in longer runs: lanes work and record, and join any
 * ticket that there ever was. Whatever the table holds for joined, the device has made so. */
#define LANES 3
#define DEVICE LANES
#define RING 2
#include "device.pml"
#include "lanes.pml"


init {
  byte who, other, until;
  read_environment();
end:
  do
  :: atomic { calls > 0 ->
    calls--;
    select(who : 0 .. LANES - 1);
    if
    :: d_step { truth[who].at[who]++; record(who) } /* one piece of work for each position */
    :: select(other : 0 .. LANES - 1);
      select(until : 1 .. 9);
      if
      :: d_step { who != other && until <= recorded[other] ->
        join(who, other, until, nothing);
        assert(truth[who].at[other] >= until);
        for (x : 0 .. LANES - 1) { assert(known[who].at[x] <= truth[who].at[x]) } }
      :: else -> calls++
      fi
    fi;
    who = 0; other = 0; until = 0 }
  od
}
