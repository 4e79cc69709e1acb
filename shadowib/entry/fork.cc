// fork: inherited objects are foreign to the child, which may join the job as a new member of its own.
#include <errno.h>
#include <pthread.h>

#include "shadowib/abi/handlers.h"
#include "shadowib/abi/slots.h"
#include "shadowib/base/log.h"
#include "shadowib/cm/device_file.h"
#include "shadowib/cr/helper.h"
#include "shadowib/cr/peers.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

bool g_fork_initialized = false;

void in_child() {
  forget_helper();
  forget_backend_after_fork();
  disown_objects_in_child();
}

// Order: the agent's handler (hooks/agent/agent.cc) is registered when the process joins, this one when the library
// is loaded; children run them in order of registration, and neither needs the other's work done.
__attribute__((constructor)) void register_fork_handler() { ::pthread_atfork(nullptr, nullptr, in_child); }

// A program may exit without destroying its queue pairs; its peers are told, and acknowledgements held back for
// company must still go out.
__attribute__((destructor)) void flush() {
  cm::leave_connections();
  flush_at_exit();
}

}  // namespace
}  // namespace shadowib

using namespace shadowib;

extern "C" {

// The shim and ib2tcp reach registered memory by the CPU: a copy-on-write copy in a child is harmless, so nothing
// needs to be kept from children.
int shadowib_ibv_fork_init() {
  g_fork_initialized = true;
  return 0;
}
int shadowib_ibv_dontfork_range(void*, std::size_t) { return 0; }
int shadowib_ibv_dofork_range(void*, std::size_t) { return 0; }
ibv_fork_status shadowib_ibv_is_fork_initialized() {
  return g_fork_initialized ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}

}  // extern "C"
