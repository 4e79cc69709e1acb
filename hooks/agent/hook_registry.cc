#include "hooks/agent/hook_registry.h"

#include "hooks/agent/agent.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr int kMaxHooks = 256;

struct Hook {
  int id;
  HookFunction function;
  void* arg;
};

SpinLock g_lock;
Hook g_hooks[kMaxHooks] SHADOWIB_GUARDED_BY(g_lock);  // in order of registration
int g_count SHADOWIB_GUARDED_BY(g_lock) = 0;
int g_next_id SHADOWIB_GUARDED_BY(g_lock) = 1;

}  // namespace

int add_hook(HookFunction function, void* arg) {
  Inside inside;
  SpinGuard guard(g_lock);
  if (g_count == kMaxHooks) return -1;
  g_hooks[g_count++] = {g_next_id, function, arg};
  return g_next_id++;
}

void remove_hook(int id) {
  Inside inside;
  SpinGuard guard(g_lock);
  for (int i = 0; i < g_count; ++i)
    if (g_hooks[i].id == id) {
      for (--g_count; i < g_count; ++i) g_hooks[i] = g_hooks[i + 1];
      return;
    }
}

// Before a checkpoint last registered first, afterwards in order, so that layers nest. A hook may add and remove
// hooks.
void run_hooks(int event) {
  Hook hooks[kMaxHooks];
  int count;
  {
    SpinGuard guard(g_lock);
    count = g_count;
    for (int i = 0; i < count; ++i) hooks[i] = g_hooks[i];
  }
  for (int i = 0; i < count; ++i) {
    const Hook& hook = hooks[event == 0 ? count - 1 - i : i];
    hook.function(event, hook.arg);
  }
}

void hooks_reset_after_fork() { g_lock.reset(); }

}  // namespace shadowib
