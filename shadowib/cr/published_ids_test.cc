#include "shadowib/cr/published_ids.h"

#include <gtest/gtest.h>

#include <cstring>

namespace shadowib {
namespace {

// With two ports, one of which has addresses and the other none.
std::string some_device() {
  ShadowDevice device{};
  std::strcpy(device.device.name, "mlx5_0");
  std::strcpy(device.device.dev_name, "uverbs0");
  device.device.transport_type = IBV_TRANSPORT_IB;
  device.guid = 0x1122;
  device.index = 3;
  device.ordinal = 1;
  device.identity = std::make_unique<DeviceIdentity>();
  device.identity->attr.phys_port_cnt = 2;
  device.identity->attr.max_qp_rd_atom = 16;
  ShadowPort port{};
  port.attr.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.gids.resize(2);
  port.gids[1].gid.raw[15] = 7;
  port.gids[1].type = 1;
  port.pkeys = {0xffff};
  device.identity->ports.push_back(port);
  port = {};
  port.lid = {0x31};
  device.identity->ports.push_back(port);
  return encode_device(device);
}

TEST(Directory, ADeviceIsTakenOverAsItWas) {
  ShadowDevice device{};
  ASSERT_TRUE(decode_device(some_device(), &device));
  EXPECT_STREQ(device.device.name, "mlx5_0");
  EXPECT_STREQ(device.device.dev_name, "uverbs0");
  EXPECT_EQ(device.guid, 0x1122u);
  EXPECT_EQ(device.index, 3);
  EXPECT_EQ(device.ordinal, 1);
  ASSERT_EQ(device.identity->ports.size(), 2u);
  EXPECT_EQ(device.identity->attr.max_qp_rd_atom, 16);
  const ShadowPort& first = device.identity->ports[0];
  EXPECT_EQ(first.attr.link_layer, IBV_LINK_LAYER_ETHERNET);
  ASSERT_EQ(first.gids.size(), 2u);
  EXPECT_TRUE(first.gids[0].empty());
  EXPECT_EQ(first.gids[1].gid.raw[15], 7);
  EXPECT_EQ(first.gids[1].type, 1);
  EXPECT_EQ(first.pkeys, std::vector<std::uint16_t>{0xffff});
  EXPECT_EQ(first.real_gids.size(), 2u) << "places for what will stand for them";
  EXPECT_EQ(first.real_indices, (std::vector<int>{-1, -1}));
  EXPECT_EQ(device.identity->ports[1].lid.value, 0x31u);
}

TEST(Directory, ADeviceCutShortIsRefused) {
  const std::string text = some_device();
  for (std::size_t n = 0; n < text.size(); ++n) {
    ShadowDevice device{};
    EXPECT_FALSE(decode_device(text.substr(0, n), &device)) << n;
  }
  ShadowDevice device{};
  EXPECT_FALSE(decode_device(text + text, &device));
}

TEST(Directory, ANameWithoutAnEndIsRefused) {
  std::string text = some_device();
  const std::size_t name = text.find("mlx5_0");
  ASSERT_NE(name, std::string::npos);
  std::memset(text.data() + name, 'x', IBV_SYSFS_NAME_MAX);
  ShadowDevice device{};
  EXPECT_FALSE(decode_device(text, &device));
}

}  // namespace
}  // namespace shadowib
