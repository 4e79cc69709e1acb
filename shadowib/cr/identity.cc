#include "shadowib/cr/identity.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "hooks/agent/agent.h"
#include "shadowib/base/this_host.h"
#include "shadowib/cr/announce.h"
#include "shadowib/cr/ports.h"
#include "shadowib/cr/published_ids.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/registry.h"
#include "shadowib/objects/work_queue.h"

namespace shadowib {
namespace {

std::string key_of(const std::string& place, int ordinal) {
  return job_key("device/" + place + "/" + std::to_string(ordinal));
}

// Where fellows are asked, in that order: those of one machine had one adapter.
std::array<std::string, 2> places() { return {"at/" + this_host(), "any"}; }

// Of the beginning. Of several adapters none: which was which is the order of libibverbs, which nobody has asked.
struct Names {
  char only[IBV_SYSFS_NAME_MAX];
  bool are_ib2tcps;
} g_names;

bool is_open(const ShadowDevice& device) {
  const auto& contexts = registry().contexts;
  return std::any_of(contexts.begin(), contexts.end(), [&](const ShadowContext& c) { return c.device == &device; });
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
  const std::unique_ptr<ShadowDevice> device = device_of_fellows(context.device->ordinal);
  if (device == nullptr || device->identity->attr.phys_port_cnt > context.real_attr.phys_port_cnt) return false;
  {
    SpinGuard guard(registry().lock);
    if (context.device->identity == nullptr) context.device->identity = std::move(device->identity);
  }
  return take_identity(context);
}

}  // namespace

Status ask_limits(ShadowContext& context) {
  const int rc = g_backend.query_device(context.real, &context.real_attr);
  return rc == 0 ? Status() : Status::of(Code::kIo, rc, "%s cannot be queried", context.device->device.name);
}

Status identify(ShadowContext& context) {
  SHADOWIB_TRY(ask_limits(context));
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

void note_names_here() {
  const char* const choice = ::getenv("SHADOWIB_BACKEND");
  const std::string_view backend = choice != nullptr && *choice != '\0' ? choice : "auto";
  char names[2][IBV_SYSFS_NAME_MAX];
  const int count = list_rdma_devices(names, 2);
  g_names.are_ib2tcps = backend == "ib2tcp" || (backend == "auto" && count == 0);
  if (count == 1 && (backend == "auto" || backend == "verbs")) std::memcpy(g_names.only, names[0], sizeof(names[0]));
}

std::string name_at_the_beginning(int ordinal) {
  if (g_names.are_ib2tcps) return "ib2tcp" + std::to_string(ordinal);
  return ordinal == 0 ? g_names.only : "";
}

void note_closed_devices(ibv_device** list, int count) {
  for (ShadowDevice* device : registry().devices)
    if (!is_open(*device) && device->ordinal < count)
      device->adapter_changed =
          std::strcmp(g_backend.get_device_name(list[device->ordinal]), device->device.name) != 0;
}

Status claim_closed_devices() {
  for (const ShadowDevice* device : registry().devices)
    if (device->identity != nullptr && !device->identity->of_a_fellow && !is_open(*device))
      SHADOWIB_TRY(claim_lids(device->identity->ports));
  return {};
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
    for (const std::string& place : places()) {
      Status status = job_exchange()->claim(key_of(place, device->ordinal), text);
      if (!status.ok() && status.code() != Code::kBusy) return status;  // a fellow was faster
    }
  }
  return {};
}

std::unique_ptr<ShadowDevice> device_of_fellows(int ordinal) {
  for (const std::string& place : places()) {
    std::string text;
    bool found = false;
    auto device = std::make_unique<ShadowDevice>();
    if (!job_exchange()->get(key_of(place, ordinal), &text, &found).ok() || !found) continue;
    if (!decode_device(text, device.get()) || device->ordinal != ordinal) continue;
    device->identity->of_a_fellow = true;
    return device;
  }
  return nullptr;
}

}  // namespace shadowib
