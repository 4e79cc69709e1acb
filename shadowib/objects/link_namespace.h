// Giving a link namespace back whose libraries hold each other.
#pragma once

namespace shadowib {

// Closes `handle` and whatever else was opened by name in its link namespace, whoever did: a verbs library never
// closes the providers it opens, and these need it. Destructors run. A library that is marked as not to be unloaded
// stays, with what it needs. Takes the loader's lock. At the end of a process it is left open. A thread that was
// saved in exit(3) may stand in the destructor of one of them, and goes on to the next one's.
void close_namespace_of(void* handle);
// Called before a namespace is opened: it needs to see when exit(3) begins.
void watch_for_exit();

}  // namespace shadowib
