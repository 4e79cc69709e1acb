#include "shadowib/cr/identity.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "hooks/agent.h"
#include "shadowib/cr/arrays.h"
#include "shadowib/cr/directory.h"
#include "shadowib/cr/ports.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/registry.h"
#include "shadowib/objects/work_queue.h"

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

std::string key_of(const std::string& place, int ordinal) {
  return job_key("device/" + place + "/" + std::to_string(ordinal));
}

// Where fellows are asked first: those of one machine had one adapter.
std::string this_host() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return std::string("at/") + name;
}
constexpr char kAnywhere[] = "any";

Status ask_device(ShadowContext& context) {
  const int rc = g_backend.query_device(context.real, &context.real_attr);
  return rc == 0 ? Status() : Status::of(Code::kIo, rc, "%s cannot be queried", context.device->device.name);
}

bool take_identity(ShadowContext& context) {
  SpinGuard guard(registry().lock);
  const DeviceIdentity* const identity = context.device->identity.get();
  if (identity == nullptr) return false;
  context.attr = identity->attr;
  context.ports = identity->ports;
  return true;
}

// The program has listed the device before the restart, and opens it only now.
bool take_fellows_identity(ShadowContext& context) {
  const std::unique_ptr<ShadowDevice> device(device_of_fellows(context.device->ordinal));
  if (device == nullptr) return false;
  {
    SpinGuard guard(registry().lock);
    if (context.device->identity == nullptr) context.device->identity = std::move(device->identity);
  }
  return take_identity(context);
}

}  // namespace

Status identify(ShadowContext& context) {
  SHADOWIB_TRY(ask_device(context));
  if (job_info().generation > 0 && (take_identity(context) || take_fellows_identity(context)))
    return rebuild_ports(context);
  context.attr = context.real_attr;
  for (int* most : {&context.attr.max_sge, &context.attr.max_sge_rd, &context.attr.max_srq_sge})
    *most = std::min(*most, static_cast<int>(kMaxSge));
  return record_ports(context);
}

void keep_identity(ShadowContext& context) {
  auto& identity = context.device->identity;
  if (identity == nullptr) identity = std::make_unique<DeviceIdentity>();
  *identity = {context.attr, context.ports, false};
}

void note_adapter(ShadowContext& context, const char* name) {
  ShadowDevice& device = *context.device;
  const auto is_another = [](const ShadowPort& port) {
    return port.real_is_ethernet != (port.attr.link_layer == IBV_LINK_LAYER_ETHERNET);
  };
  device.adapter_changed = std::strcmp(name, device.device.name) != 0 ||
                           std::any_of(context.ports.begin(), context.ports.end(), is_another);
}

Status publish_identities() {
  for (const ShadowDevice* device : registry().devices) {
    if (!device->adapter_changed || device->identity == nullptr) continue;
    const std::string text = encode_device(*device);
    for (const std::string& place : {this_host(), std::string(kAnywhere)}) {
      Status status = job_exchange()->claim(key_of(place, device->ordinal), text);
      if (!status.ok() && status.code() != Code::kBusy) return status;  // a fellow was faster
    }
  }
  return {};
}

ShadowDevice* device_of_fellows(int ordinal) {
  for (const std::string& place : {this_host(), std::string(kAnywhere)}) {
    std::string text;
    bool found = false;
    auto device = std::make_unique<ShadowDevice>();
    if (!job_exchange()->get(key_of(place, ordinal), &text, &found).ok() || !found) continue;
    if (!decode_device(text, device.get()) || device->ordinal != ordinal) continue;
    device->identity->of_a_fellow = true;
    return device.release();
  }
  return nullptr;
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
