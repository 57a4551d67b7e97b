/* detail/engine/memory_layout.hpp: where storages lie, as graphs know it; compared slot by slot, since a storage
 * keeps its slot as long as it has its number. */
typedef layout { byte number[SLOTS]; byte on_device[SLOTS]; byte copy[SLOTS]; bool eager[SLOTS] };

hidden byte yes, alike; /* what a check has found */
hidden byte i;          /* scratch */

inline copy_layout(into, from) {
  for (i : 0 .. SLOTS - 1) {
    into.number[i] = from.number[i];
    into.on_device[i] = from.on_device[i];
    into.copy[i] = from.copy[i];
    into.eager[i] = from.eager[i]
  }
}
/* engine/capture.hpp: layout, with what was reloaded ahead of its use or without */
inline take_layout(into, reloads) {
  for (i : 0 .. SLOTS - 1) {
    into.number[i] = store[i].number;
    into.on_device[i] = (!store[i].handle && store[i].copy != none && !reloads ->
                         none : store[i].on_device);
    into.copy[i] = store[i].copy;
    into.eager[i] = (store[i].number != 0 && !store[i].made_inside)
  }
}
inline compare(one, other) {
  yes = true;
  for (i : 0 .. SLOTS - 1) {
    yes = (yes && (one.number[i] == other.number[i] || left_out(launch_by_address)) &&
           one.on_device[i] == other.on_device[i] && one.copy[i] == other.copy[i])
  }
}
/* engine/memory_layout.hpp: agrees */
inline agrees(said, found) {
  yes = true;
  for (i : 0 .. SLOTS - 1) {
    yes = (yes && (said.number[i] == 0 ||
                   (said.number[i] == found.number[i] &&
                    (said.on_device[i] == none || said.on_device[i] == found.on_device[i]) &&
                    (said.copy[i] == none || said.copy[i] == found.copy[i]))))
  }
}
/* engine/memory_layout.hpp: all_alive */
inline all_alive(wanted, found) {
  yes = true;
  for (i : 0 .. SLOTS - 1) {
    yes = (yes && (!wanted.eager[i] || wanted.number[i] == found.number[i] ||
                   left_out(launch_after_death)))
  }
}
inline clear_layout(what_was) {
  for (i : 0 .. SLOTS - 1) {
    what_was.number[i] = 0; what_was.on_device[i] = 0; what_was.copy[i] = 0; what_was.eager[i] = 0
  }
}
