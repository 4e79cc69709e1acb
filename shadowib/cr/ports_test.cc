// Which GID of another adapter stands for one the program knows.
#include "shadowib/cr/ports.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "shadowib/objects/backend.h"

namespace shadowib {

BackendOps g_backend;

namespace {

RecordedGid ipv4(int last, int type = 1) {
  RecordedGid gid{};
  gid.gid.raw[10] = gid.gid.raw[11] = 0xff;
  gid.gid.raw[12] = 10;
  gid.gid.raw[15] = static_cast<std::uint8_t>(last);
  gid.type = type;
  return gid;
}
RecordedGid link_local(int last, int type = 1) {
  RecordedGid gid{};
  gid.gid.raw[0] = 0xfe;
  gid.gid.raw[1] = 0x80;
  gid.gid.raw[15] = static_cast<std::uint8_t>(last);
  gid.type = type;
  return gid;
}

TEST(Ports, TheSameGidWhereverItStands) {
  EXPECT_EQ(find_substitute({link_local(1), ipv4(1), ipv4(2)}, ipv4(2), 1), 2);
}

TEST(Ports, ElseOneOfItsKind) {
  const std::vector<RecordedGid> real = {link_local(7, 0), link_local(7), ipv4(9, 0), ipv4(9)};
  EXPECT_EQ(find_substitute(real, ipv4(1), 1), 3);
  EXPECT_EQ(find_substitute(real, link_local(1), 0), 1);
  EXPECT_EQ(find_substitute(real, ipv4(1, 0), 1), 2);
}

TEST(Ports, ElseAnyThatIsThere) {
  EXPECT_EQ(find_substitute({{}, link_local(7, 0)}, ipv4(1), 0), 1);
  EXPECT_EQ(find_substitute({{}, {}}, ipv4(1), 0), -1);
  EXPECT_EQ(find_substitute({}, ipv4(1), 0), -1);
}

ShadowPort roce(std::vector<RecordedGid> table, std::vector<int> indices) {
  ShadowPort port{};
  port.real_is_ethernet = true;
  port.real_table = std::move(table);
  port.real_indices = std::move(indices);
  for (int i : port.real_indices)
    port.real_gids.push_back(i < 0 ? ibv_gid{} : port.real_table[static_cast<std::size_t>(i)].gid);
  return port;
}

// Where several of the program's GIDs are one now, a datagram came to the one that its sender could mean.
TEST(Ports, ADatagramsDestinationIsOfItsSourcesFamily) {
  ShadowContext context{};
  context.ports.push_back(roce({link_local(7)}, {0, 0, 0}));
  ShadowPort& port = context.ports[0];
  port.gids = {link_local(1), ipv4(1), ipv4(2)};
  const ibv_gid real = link_local(7).gid;
  const auto came_to = [&](const RecordedGid& from) { return program_gid(context, real, from.gid).gid.raw[15]; };
  EXPECT_EQ(came_to(link_local(9)), 1);
  EXPECT_EQ(program_gid(context, real, ipv4(9).gid).gid.raw[10], 0xff);
  ibv_ah_attr route{};
  route.port_num = 1;
  route.is_global = 1;
  route.grh.sgid_index = 2;
  note_source(context, route);
  EXPECT_EQ(came_to(ipv4(9)), 2) << "the program sends from it";
  EXPECT_EQ(program_gid(context, real, link_local(9).gid).gid.raw[10], 0) << "the family counts more";
  EXPECT_EQ(program_gid(context, ipv4(5).gid, ipv4(9).gid).gid.raw[15], 5) << "not ours";
  port.gids[0] = {};
  port.named_gid = 0;
  EXPECT_EQ(program_gid(context, real, link_local(9).gid).gid.raw[10], 0xff) << "an empty entry is no address";
  port.named_gid = 2;
  route.grh.sgid_index = 3;
  note_source(context, route);
  EXPECT_EQ(port.named_gid, 2) << "there is none of that index";
}

// And what leaves from there is the program's own choice, or one that stands there, or, where none does, its choice.
TEST(Ports, ADatagramsSourceIsTheOneThatTheProgramNames) {
  ShadowPort port = roce({link_local(7), ipv4(7), ipv4(8)}, {0, 1, 1});
  port.gids = {link_local(1), ipv4(1), ipv4(2)};
  const auto source = [&](const RecordedGid& real) { return program_source(port, real.gid).raw[15]; };
  EXPECT_EQ(source(ipv4(7)), 1);
  port.named_gid = 2;
  EXPECT_EQ(source(ipv4(7)), 2);
  EXPECT_EQ(source(link_local(7)), 1);
  EXPECT_EQ(program_source(port, link_local(7).gid).raw[0], 0xfe);
  EXPECT_EQ(source(ipv4(8)), 2) << "the adapter's, and none of the program's";
}

TEST(Ports, TheSourceIsOfTheDestinationsFamily) {
  const ShadowPort port = roce({link_local(7), ipv4(9, 0), ipv4(9)}, {0, 2});
  EXPECT_EQ(source_index(port, 1, ipv4(5).gid), 2) << "the program's choice";
  EXPECT_EQ(source_index(port, 0, link_local(5).gid), 0);
  EXPECT_EQ(source_index(port, 0, ipv4(5).gid), 2) << "a link-local one does not lead there; RoCE v2 before v1";
  EXPECT_EQ(source_index(port, 77, ipv4(5).gid), 2) << "an index the program was never told";
}

class Route : public testing::Test {
 protected:
  std::unique_ptr<ShadowContext> context = std::make_unique<ShadowContext>();
  DirectoryPort peer{};
  ibv_ah_attr attr{};
  void SetUp() override { attr.port_num = 1; }
};

// A program that was told LIDs, on an adapter that routes by GID alone.
TEST_F(Route, ALidBecomesAGlobalRouteOnRoce) {
  context->ports.push_back(roce({link_local(7), ipv4(9)}, {1}));
  attr.dlid = 5;
  peer.real_gid = ipv4(3).gid;
  set_route(*context, &peer, &attr);
  EXPECT_EQ(attr.dlid, 0);
  EXPECT_EQ(attr.is_global, 1);
  EXPECT_EQ(std::memcmp(&attr.grh.dgid, &peer.real_gid, 16), 0);
  EXPECT_EQ(attr.grh.sgid_index, 1);
  EXPECT_GT(attr.grh.hop_limit, 1);
}

// And the other way: the route stays global, by an index that is there.
TEST_F(Route, AGidGetsALidOffRoce) {
  context->ports.push_back(roce({link_local(7, 0)}, {0, 0}));
  context->ports[0].real_is_ethernet = false;
  attr.is_global = 1;
  attr.grh.sgid_index = 1;
  peer.real_lid = 12;
  peer.real_gid = link_local(8, 0).gid;
  set_route(*context, &peer, &attr);
  EXPECT_EQ(attr.dlid, 12);
  EXPECT_EQ(attr.grh.sgid_index, 0);
}

// A group's GID is the same everywhere, the program's own may not lead there.
TEST_F(Route, AGroupIsReachedFromAnAddressOfItsFamily) {
  context->ports.push_back(roce({link_local(7), ipv4(9)}, {1, 0}));
  attr.is_global = 1;
  attr.grh.dgid = ipv4(1).gid;
  attr.grh.dgid.raw[12] = 230;
  for (std::uint8_t index : {0, 1}) {
    attr.grh.sgid_index = index;
    set_multicast_route(*context, &attr);
    EXPECT_EQ(attr.grh.sgid_index, 1);
  }
  attr.grh.dgid = {.raw = {0xff, 0x12, 0x40, 0x1b}};
  for (std::uint8_t index : {0, 1}) {
    attr.grh.sgid_index = index;
    set_multicast_route(*context, &attr);
    EXPECT_EQ(attr.grh.sgid_index, 0);
  }
  context->ports[0].real_is_ethernet = false;
  attr.grh.sgid_index = 0;
  set_multicast_route(*context, &attr);
  EXPECT_EQ(attr.grh.sgid_index, 1) << "the program's choice";
}

// Another port of the adapter, which may be down, has no say: the peer knows nothing of it.
TEST_F(Route, ThePathMtuIsWhatBothPortsCanDo) {
  context->ports.push_back(roce({ipv4(9)}, {0}));
  context->ports.push_back(roce({ipv4(8)}, {0}));
  context->ports[0].real_mtu = IBV_MTU_256;
  context->ports[1].real_mtu = IBV_MTU_2048;
  peer.real_mtu = IBV_MTU_1024;
  EXPECT_EQ(possible_mtu(*context, 2, &peer, IBV_MTU_4096), IBV_MTU_1024);
  EXPECT_EQ(possible_mtu(*context, 2, nullptr, IBV_MTU_4096), IBV_MTU_2048);
  EXPECT_EQ(possible_mtu(*context, 1, &peer, IBV_MTU_4096), IBV_MTU_256);
  EXPECT_EQ(possible_mtu(*context, 2, &peer, IBV_MTU_512), IBV_MTU_512);
}

TEST_F(Route, NobodyIsNotTheWrongOne) {
  context->ports.push_back(roce({ipv4(9)}, {0}));
  attr.is_global = 1;
  attr.grh.dgid = ipv4(1).gid;
  set_route(*context, nullptr, &attr);
  EXPECT_EQ(std::memcmp(&attr.grh.dgid, &context->ports[0].real_gids[0], 16), 0)
      << "RoCE refuses an address of zeros";
  context->ports[0].real_is_ethernet = false;
  set_route(*context, nullptr, &attr);
  EXPECT_NE(attr.dlid, 0);
  EXPECT_EQ(attr.grh.dgid.global.interface_id, 0u);
}

TEST(Partitions, AreKnownByTheirKeys) {
  const auto keys = [](std::vector<std::uint16_t> host) {
    for (std::uint16_t& key : host) key = htobe16(key);
    return host;
  };
  using Indices = std::vector<int>;
  EXPECT_EQ(find_partitions(keys({0xffff, 0, 0x8002, 0x8001}), keys({0xffff, 0x8001})), (Indices{0, 3}));
  EXPECT_EQ(find_partitions(keys({0x0001, 0x8001}), keys({0x8001, 0x0001})), (Indices{1, 0}))
      << "the same membership";
  EXPECT_EQ(find_partitions(keys({0xffff, 0x0001}), keys({0xffff, 0x8001})), (Indices{0, 1})) << "or another";
  EXPECT_EQ(find_partitions(keys({0xffff, 0xffff}), keys({0xffff, 0xffff})), (Indices{0, 1})) << "the same place";
  EXPECT_EQ(find_partitions(keys({0xffff, 0}), keys({0x8001, 0})), (Indices{-1, -1}));
  EXPECT_EQ(find_partitions(keys({0xffff}), keys({0x8001, 0xffff, 0})), (Indices{0, 0, 0})) << "RoCE, ib2tcp";
}

}  // namespace
}  // namespace shadowib
