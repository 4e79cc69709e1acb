// Verbs semantics of ib2tcp, the same over every transport: what the cases of this folder run in.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ib2tcp/testing/endpoint.h"

namespace shadowib::ib2tcp::testing {

// Each case runs once per transport, between two devices that last for all cases of that transport: a case leaves
// nothing behind in them.
class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  Conformance();
  Device& a();
  Device& b();

 private:
  struct World;
  World* world_;
};

// A figure of a side's own statistics; -1 if it has none of that name.
long figure(Endpoint& endpoint, const std::string& name);
// How often it has refused a request for want of a receive.
long refusals(Endpoint& endpoint);

}  // namespace shadowib::ib2tcp::testing
