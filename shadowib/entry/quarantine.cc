#include "shadowib/entry/quarantine.h"

#include <cstddef>
#include <deque>

namespace shadowib {
namespace {

constexpr std::size_t kResting = 64;

struct Resting {
  void* object;
  void (*destroy)(void*);
};
std::deque<Resting>& g_resting = *new std::deque<Resting>;  // outlives exit handlers

}  // namespace

void rest_before_delete(void* object, void (*destroy)(void*)) {
  g_resting.push_back({object, destroy});
  if (g_resting.size() <= kResting) return;
  g_resting.front().destroy(g_resting.front().object);
  g_resting.pop_front();
}

}  // namespace shadowib
