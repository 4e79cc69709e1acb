#include "shadowib/cr/published_ids.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "hooks/agent/agent.h"
#include "shadowib/cr/arrays.h"

namespace shadowib {
namespace {

// The beginning of a device's form; its ports follow, each a PortForm, its GIDs and its P_Keys.
struct DeviceForm {
  ibv_device device;
  std::uint64_t guid;
  std::int32_t index, ordinal;
  ibv_device_attr attr;
};
struct PortForm {
  ibv_port_attr attr;
  std::uint32_t lid;
};

}  // namespace

std::string job_key(const std::string& rest) { return std::string(job_info().epoch) + "/" + rest; }

std::string hex(const ibv_gid& gid) {
  char text[33];
  for (int i = 0; i < 16; ++i) std::snprintf(text + 2 * i, 3, "%02x", gid.raw[i]);
  return text;
}

std::string address_key(VirtualLid lid) { return job_key("at/lid/" + std::to_string(lid.value)); }
std::string address_key(const ibv_gid& gid) { return job_key("at/gid/" + hex(gid)); }

std::string source_key(const SourceAddress& from) {
  return job_key("source/" + (from.lid != 0 ? std::to_string(from.lid) : hex(from.gid)) + "/" +
                 std::to_string(from.qp_num));
}

std::string late_key(const char* kind, std::uint32_t member, std::uint32_t pd, std::uint32_t id) {
  return job_key("late/" + std::to_string(member) + "/" + kind + "/" + std::to_string(pd) + "/" + std::to_string(id));
}

std::string late_number_key(const char* kind, std::uint32_t member, std::uint32_t adapter, std::uint32_t number) {
  return job_key("late/" + std::to_string(member) + "/" + kind + "/" + std::to_string(adapter) + "/" +
                 std::to_string(number));
}

std::string encode_directory(const Directory& directory) {
  std::string out;
  put_array(&out, directory.ports);
  put_array(&out, directory.qps);
  put_array(&out, directory.srqs);
  put_array(&out, directory.keys);
  put_array(&out, directory.windows);
  return out;
}

bool decode_directory(const std::string& text, Directory* directory) {
  std::string_view in(text);
  return take_array(&in, &directory->ports) && take_array(&in, &directory->qps) &&
         take_array(&in, &directory->srqs) && take_array(&in, &directory->keys) &&
         take_array(&in, &directory->windows) && in.empty();
}

std::string encode_device(const ShadowDevice& device) {
  std::string text;
  DeviceForm form{device.device, device.guid, device.index, device.ordinal, device.identity->attr};
  std::memset(&form.device._ops, 0, sizeof(form.device._ops));
  put_array(&text, std::vector{form});
  for (const ShadowPort& port : device.identity->ports) {
    put_array(&text, std::vector{PortForm{port.attr, port.lid.value}});
    put_array(&text, port.gids);
    put_array(&text, port.pkeys);
  }
  return text;
}

bool decode_device(const std::string& text, ShadowDevice* device) {
  std::string_view in(text);
  std::vector<DeviceForm> forms;
  if (!take_array(&in, &forms) || forms.size() != 1) return false;
  const DeviceForm& form = forms[0];
  for (const char* name : {form.device.name, form.device.dev_name})
    if (::strnlen(name, IBV_SYSFS_NAME_MAX) == IBV_SYSFS_NAME_MAX) return false;
  for (const char* path : {form.device.dev_path, form.device.ibdev_path})
    if (::strnlen(path, IBV_SYSFS_PATH_MAX) == IBV_SYSFS_PATH_MAX) return false;
  device->device = form.device;
  std::memset(&device->device._ops, 0, sizeof(device->device._ops));
  device->guid = form.guid;
  device->index = form.index;
  device->ordinal = form.ordinal;
  device->identity = std::make_unique<DeviceIdentity>();
  device->identity->attr = form.attr;
  while (!in.empty()) {
    std::vector<PortForm> port_form;
    ShadowPort port{};
    if (!take_array(&in, &port_form) || port_form.size() != 1 || !take_array(&in, &port.gids) ||
        !take_array(&in, &port.pkeys))
      return false;
    port.attr = port_form[0].attr;
    port.lid = {port_form[0].lid};
    port.real_gids.resize(port.gids.size());
    port.real_indices.assign(port.gids.size(), -1);
    device->identity->ports.push_back(std::move(port));
  }
  return device->identity->ports.size() == form.attr.phys_port_cnt;
}

}  // namespace shadowib
