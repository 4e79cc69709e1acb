#include "shadowib/objects/acknowledged_events.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace shadowib {
namespace {

TEST(AcknowledgedEvents, NobodyWaitsForNothing) {
  AcknowledgedEvents events;
  events.wait_for_all();
  events.note_delivered();
  events.note_delivered();
  events.acknowledge(2);
  events.wait_for_all();
}

TEST(AcknowledgedEvents, AWaiterWakesAtTheLastAndMayFreeItAtOnce) {
  for (int round = 0; round < 2000; ++round) {
    auto events = std::make_unique<AcknowledgedEvents>();
    for (int i = 0; i < 3; ++i) events->note_delivered();
    AcknowledgedEvents* told = events.get();
    std::thread program([told] {
      told->acknowledge(1);
      told->acknowledge(2);
    });
    events->wait_for_all();
    events.reset();
    program.join();
  }
}

TEST(AcknowledgedEvents, CountsBeyondItsWord) {
  AcknowledgedEvents events;
  for (int i = 0; i < 4; ++i) events.note_delivered();
  events.acknowledge(std::uint32_t{1} << 31);  // as many as a long-lived object's word has wrapped by
  events.acknowledge(std::uint32_t{1} << 31);
  events.acknowledge(4);
  events.wait_for_all();
}

}  // namespace
}  // namespace shadowib
