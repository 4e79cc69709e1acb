#include "shadowib/objects/registry.h"

#include <algorithm>

#include "shadowib/base/guard.h"
#include "shadowib/base/lasting.h"

namespace shadowib {

Registry& registry() { return Lasting<Registry>::get(); }

// What may be left counts as looked at once for each handle that comes until then.
void Registry::note_destroyed(ShadowAh& ah) {
  constexpr std::size_t kFew = 64;
  ahs.erase(ahs.iterator_to(ah));
  destroyed_ahs.push_back(ah);
  if (++destroyed_since_sweep_ >= kFew + looked_at_in_sweep_ / 4) sweep_address_handles();
}

void Registry::sweep_address_handles() {
  destroyed_since_sweep_ = looked_at_in_sweep_ = 0;
  if (destroyed_ahs.empty()) return;
  std::vector<const ibv_ah*> named;
  for (ShadowQp& qp : qps) {
    if (!qp.is_datagram()) continue;
    SpinGuard guard(qp.send.lock);
    for (std::uint64_t s = qp.send.tail(); s < qp.send.head; ++s, ++looked_at_in_sweep_)
      if (const SendSlot& slot = qp.send.slot(s); !slot.done()) named.push_back(slot.wr.wr.ud.ah);
  }
  std::sort(named.begin(), named.end());
  for (auto it = destroyed_ahs.begin(); it != destroyed_ahs.end();) {
    ShadowAh& ah = *it++;
    if (std::binary_search(named.begin(), named.end(), &ah.ah)) continue;
    ah.destroy_real();  // made again by a restart
    --ShadowPd::of(ah.ah.pd)->users;
    destroyed_ahs.erase(destroyed_ahs.iterator_to(ah));
    delete &ah;
  }
}

namespace {

void insert_sorted(std::vector<std::uint32_t>* into, std::uint32_t value) {
  auto at = std::lower_bound(into->begin(), into->end(), value);
  if (at == into->end() || *at != value) into->insert(at, value);
}

// The real key, or a late one with the same lowest byte.
template <typename Taken>
std::uint32_t first_free(std::uint32_t real, Taken taken) {
  if (!is_late_key(real) && !taken(real)) return real;
  std::uint32_t key = kLateKeys | (real & ~kLateKeyMask);
  while (taken(key)) key = kLateKeys | ((key + 0x100) & ~kLateKeyMask);
  return key;
}

}  // namespace

VirtualKey Registry::choose_key(RealKey real, bool remote) {
  auto taken = [&](std::uint32_t key) {
    if (std::binary_search(reserved_keys.begin(), reserved_keys.end(), key)) return true;
    if (std::binary_search(reserved_blocks.begin(), reserved_blocks.end(), window_block(key))) return true;
    for (const ShadowMw& mw : mws)
      if (window_block(mw.mw.rkey) == window_block(key)) return true;
    return std::any_of(mrs.begin(), mrs.end(),
                       [&](const ShadowMr& mr) { return (remote ? mr.mr.rkey : mr.mr.lkey) == key; });
  };
  if (reserved_keys.empty() || !guarded(Guard::kReserveNumbers))
    return {real.value};  // generation 0: they are unique
  const std::uint32_t key = first_free(real.value, taken);
  if (key != real.value) insert_sorted(&reserved_keys, key);  // peers keep what they were told of it
  return {key};
}

VirtualKey Registry::choose_window_key(RealKey real) {
  if (reserved_keys.empty()) return {real.value};
  auto taken = [&](std::uint32_t key) {
    const std::uint32_t block = window_block(key);
    if (std::binary_search(reserved_blocks.begin(), reserved_blocks.end(), block)) return true;
    if (auto at = std::lower_bound(reserved_keys.begin(), reserved_keys.end(), window_key(key, 0));
        at != reserved_keys.end() && window_block(*at) == block)
      return true;
    return std::any_of(mws.begin(), mws.end(),
                       [&](const ShadowMw& mw) { return window_block(mw.mw.rkey) == block; }) ||
           std::any_of(mrs.begin(), mrs.end(), [&](const ShadowMr& mr) {
             return window_block(mr.mr.rkey) == block || window_block(mr.mr.lkey) == block;
           });
  };
  const std::uint32_t key = first_free(real.value, taken);
  if (key != real.value) insert_sorted(&reserved_blocks, window_block(key));
  return {key};
}

void Registry::number(ShadowQp& qp) {
  for (ShadowContext& context : contexts)
    if (&context == qp.context || (qp.is_target() && context.device == qp.context->device))
      context.numbered.insert({qp.real->qp_num}, &qp);
}

void Registry::unnumber(const ShadowQp& qp, RealQpNum number) {
  for (ShadowContext& context : contexts)
    if (&context == qp.context || (qp.is_target() && context.device == qp.context->device))
      context.numbered.erase(number);
}

void Registry::number_targets(ShadowContext& context) {
  for (ShadowQp& qp : qps)
    if (qp.is_target() && qp.context->device == context.device) context.numbered.insert({qp.real->qp_num}, &qp);
}

void disown_objects_in_child() {
  Registry& r = registry();
  r.lock.reset();
  for (ShadowContext& context : r.contexts) {
    int async_fd = context.program().async_fd;
    fill_refusing_slots(&context.newest);
    context.program().async_fd = async_fd;
    context.foreign = guarded(Guard::kForeignInChild);
  }
  for (ShadowDevice* device : r.devices)
    if (device->identity != nullptr) device->identity->of_a_fellow = true;  // its addresses are the parent's
  r.contexts.clear();
  r.pds.clear();
  r.mws.clear();
  r.mrs.clear();
  r.channels.clear();
  r.cqs.clear();
  r.srqs.clear();
  r.qps.clear();
  r.opened.clear();
  r.xrcds.clear();
  r.ahs.clear();
  r.destroyed_ahs.clear();
}

}  // namespace shadowib
