// Giving a link namespace back whose libraries hold each other.
#pragma once

namespace shadowib {

// Closes `handle` and whatever else was opened by name in its link namespace, whoever did: a verbs library never
// closes the providers it opens, and these need it. Destructors run. A library that is marked as not to be unloaded
// stays, with what it needs. Takes the loader's lock.
void close_namespace_of(void* handle);

}  // namespace shadowib
