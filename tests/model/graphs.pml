/* What a device makes of a capture, and does in a launch. */
#ifndef CAPTURES
#define CAPTURES 2
#endif
/* What a graph is to the device: one piece of work that expects and leaves bytes in blocks. */
typedef graph { bool there; layout before; layout after;
                bool touches[BLOCKS]; byte needs[BLOCKS]; byte leaves[BLOCKS] };
graph graphs[CAPTURES + 1];

hidden byte j, k; /* scratch */

/* Every side stream has been joined, and a graph is made unless it failed. */
inline device_end(failed) {
  for (k : COMPUTE .. LANES - 1) { /* the trainer joins what it forked */
    if
    :: inside[k] && k != origin -> trainer_joins(origin, k)
    :: else
    fi
  }
  for (k : 0 .. LANES - 1) {
    assert(failed || truth[CLOCK(origin)].at[k] >= truth[LANES + k].at[k])
  }
  graphs[capture].there = !failed;
  for (k : 0 .. BLOCKS - 1) {
    for (j : 0 .. LANES - 1) {
      graphs[capture].touches[k] =
        (!failed && (graphs[capture].touches[k] || touched[BLOCKS + k].at[j] > 0))
    }
    graphs[capture].needs[k] = (failed -> 0 : needs[k]);
    graphs[capture].leaves[k] = (failed -> 0 : holds[BLOCKS + k]);
    needs[k] = 0;
    holds[BLOCKS + k] = 0;
    clear(touched[BLOCKS + k]);
    clear(written[BLOCKS + k])
  }
  for (k : 0 .. LANES - 1) { inside[k] = false; clear(truth[LANES + k]) }
  j = capture;
  capture = 0
}

/* All that it reads and writes, in one piece on the stream. */
inline device_replay(which, user) {
  truth[user].at[user]++;
  for (k : 0 .. BLOCKS - 1) {
    if
    :: graphs[which].touches[k] ->
      assert(graphs[which].needs[k] == 0 || graphs[which].needs[k] == holds[k]); /* the right bytes */
      for (j : 0 .. LANES - 1) {
        assert(j == user || (graphs[which].leaves[k] != 0 -> touched[k].at[j] : written[k].at[j])
                              <= truth[user].at[j]);
        if
        :: graphs[which].leaves[k] != 0 -> touched[k].at[j] = 0; written[k].at[j] = 0
        :: else
        fi
      }
      touched[k].at[user] = truth[user].at[user];
      if
      :: graphs[which].leaves[k] != 0 ->
        written[k].at[user] = truth[user].at[user];
        holds[k] = graphs[which].leaves[k]
      :: else
      fi
    :: else
    fi
  }
  for (k : 0 .. SLOTS - 1) { /* nor does it work on what is gone */
    assert(!graphs[which].before.eager[k] || graphs[which].before.number[k] == store[k].number)
  }
}
