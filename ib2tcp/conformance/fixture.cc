#include "ib2tcp/conformance/fixture.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "ib2tcp/testing/process.h"

namespace shadowib::ib2tcp::testing {

// Two processes, or one for self.
struct Conformance::World {
  explicit World(const std::string& transport) : exchange(std::make_shared<FakeExchange>()) {
    ProcessOptions options;
    bool self = transport == "self";
    options.transport = self ? "auto" : transport;
    first = std::make_unique<Process>(exchange, options);
    if (!self) second = std::make_unique<Process>(exchange, options);
    a = std::make_unique<Device>(*first);
    b = std::make_unique<Device>(self ? *first : *second);
  }
  std::shared_ptr<FakeExchange> exchange;
  std::unique_ptr<Process> first, second;
  std::unique_ptr<Device> a, b;
};

Conformance::Conformance() {
  static std::map<std::string, std::unique_ptr<World>> worlds;
  std::unique_ptr<World>& world = worlds[GetParam()];
  if (world == nullptr) world = std::make_unique<World>(GetParam());
  world_ = world.get();
}

Device& Conformance::a() { return *world_->a; }
Device& Conformance::b() { return *world_->b; }

long figure(Endpoint& endpoint, const std::string& name) {
  char text[2048] = {};
  endpoint.ops.describe(text, sizeof(text));
  const std::string quoted = "\"" + name + "\": ";
  const char* at = std::strstr(text, quoted.c_str());
  return at != nullptr ? std::atol(at + quoted.size()) : -1;
}
long refusals(Endpoint& endpoint) { return figure(endpoint, "rnr_naks"); }

INSTANTIATE_TEST_SUITE_P(Self, Conformance, ::testing::Values("self"),
                         [](const auto&) { return std::string("self"); });
INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(kTransports),
                         [](const auto& info) { return name_in_test(info.param); });

}  // namespace shadowib::ib2tcp::testing
