#include "shadowib/cr/announce.h"

#include <algorithm>
#include <string>

#include "hooks/agent/agent.h"
#include "shadowib/base/guard.h"
#include "shadowib/base/log.h"
#include "shadowib/cr/peers.h"
#include "shadowib/cr/ports.h"
#include "shadowib/cr/published_ids.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

DirectoryNumber entry_of(const ShadowQp& qp) {
  return {qp.qp_num.value, qp.real->qp_num, qp.pd_id(), qp.context->adapter()};
}

DirectoryNumber entry_of(const ShadowSrq& srq) {
  return {srq.number.value, srq.real_number.value, ShadowPd::of(srq.srq.pd)->id, srq.context->adapter()};
}

Status claim_lid(VirtualLid lid) {
  return job_exchange()->claim(job_key("lid/" + std::to_string(lid.value)), std::to_string(job_info().member));
}

// That this member is to be found at a context's addresses, as others on the same adapter may be.
void append_addresses(const ShadowContext& context, std::vector<Exchange::Value>* values) {
  const std::string member = std::to_string(job_info().member);
  for (const ShadowPort& port : context.ports) {
    if (port.lid.value != 0) values->push_back({address_key(port.lid) + "/" + member, "", true});
    for (const RecordedGid& gid : port.gids)
      if (!gid.empty()) values->push_back({address_key(gid.gid) + "/" + member, "", true});
  }
}

Status publish_late_key(const char* kind, std::uint32_t pd, std::uint32_t id, std::uint32_t real) {
  return job_exchange()->publish(late_key(kind, job_info().member, pd, id),
                                 {reinterpret_cast<const char*>(&real), sizeof(real)});
}

std::string claim_of_number(const char* kind, std::uint32_t number) {
  return job_key("late-number/" + std::string(kind) + "/" + std::to_string(number));
}

bool is_reserved(const std::vector<std::uint32_t>& reserved, std::uint32_t number) {
  return std::binary_search(reserved.begin(), reserved.end(), number);
}

Status choose_number(const char* kind, std::uint32_t real, const std::vector<std::uint32_t>& reserved,
                     std::uint32_t* number) {
  const auto is_free = [&reserved](std::uint32_t n) {
    SpinGuard guard(registry().lock);
    return !is_reserved(reserved, n);
  };
  *number = real;
  // At generation 0 nothing is reserved, and real numbers are unique.
  if (job_info().generation == 0 || !guarded(Guard::kReserveNumbers) || (!is_late_number(real) && is_free(real)))
    return {};
  const std::string mine = std::to_string(job_info().member);
  for (std::uint32_t late = real;; ++late) {
    *number = kLateNumbers | (late & ~kLateNumberMask & 0xffffff);
    if (!is_free(*number)) continue;
    Status status = job_exchange()->claim(claim_of_number(kind, *number), mine);
    if (status.code() != Code::kBusy) return status;
  }
}

Status publish_late_number(const char* kind, const DirectoryNumber& entry) {
  return job_exchange()->publish(late_number_key(kind, job_info().member, entry.adapter, entry.virtual_number),
                                 {reinterpret_cast<const char*>(&entry), sizeof(entry)});
}

void withdraw(const std::string& key) {
  if (job_info().generation == 0) return;
  if (Status s = job_exchange()->remove(key); !s.ok()) log_line(LogLevel::kDebug, "%s", s.text());
}

// One that is reserved was claimed in another generation, if at all, and may be somebody else's now.
void withdraw_number(const char* kind, const ShadowContext& context, std::uint32_t number,
                     const std::vector<std::uint32_t>& reserved) {
  withdraw(late_number_key(kind, job_info().member, context.adapter(), number));
  if (is_late_number(number) && !is_reserved(reserved, number)) withdraw(claim_of_number(kind, number));
}

// GIDs of a port that was described by another process, which goes by another LID.
void tell_apart(ShadowPort& port, std::uint32_t others_lid) {
  const std::uint32_t difference = port.lid.value ^ others_lid;
  for (RecordedGid& gid : port.gids) {
    if (gid.empty()) continue;
    gid.gid.raw[14] ^= static_cast<std::uint8_t>(difference >> 8);
    gid.gid.raw[15] ^= static_cast<std::uint8_t>(difference);
  }
}

Status claim_and_publish(ShadowContext& context) {
  SHADOWIB_TRY(claim_lids(context.ports));
  SHADOWIB_TRY(publish_directory());
  return reserve_neighbours_numbers(context);
}

}  // namespace

Status announce_ports(ShadowContext& context) {
  if (job_info().generation == 0) {
    std::vector<Exchange::Value> addresses;
    append_addresses(context, &addresses);
    SHADOWIB_TRY(claim_lids(context.ports));
    return job_exchange()->publish_all(addresses);
  }
  bool is_known = false, is_of_a_fellow = false;
  {
    SpinGuard guard(registry().lock);
    if (const DeviceIdentity* identity = context.device->identity.get(); identity != nullptr) {
      is_of_a_fellow = identity->of_a_fellow;
      is_known = !is_of_a_fellow;
    }
  }
  if (is_known) return claim_and_publish(context);
  // An old member may hold, as its virtual LID, the one this context was given: take another then.
  for (ShadowPort& port : context.ports) {
    const std::uint32_t given = port.lid.value;
    if (is_of_a_fellow && given != 0 && port.real_lid.value != 0) port.lid = {port.real_lid.value};
    for (Status s = claim_lid(port.lid); port.lid.value != 0 && !s.ok(); s = claim_lid(port.lid)) {
      if (s.code() != Code::kBusy) return s;
      port.lid.value = port.lid.value % 0xbfff + 1;
    }
    port.attr.lid = static_cast<std::uint16_t>(port.lid.value);
    if (is_of_a_fellow) tell_apart(port, given);
  }
  return claim_and_publish(context);
}

Status claim_lids(const std::vector<ShadowPort>& ports) {
  for (const ShadowPort& port : ports) {
    if (port.lid.value == 0) continue;
    if (Status s = claim_lid(port.lid); !s.ok() && s.code() != Code::kBusy) return s;
  }
  return {};
}

Status publish_directory() {
  Directory d;
  std::vector<Exchange::Value> values;
  Registry& r = registry();
  {
    SpinGuard guard(r.lock);
    for (ShadowContext& context : r.contexts) {
      append_addresses(context, &values);
      const auto responders = static_cast<std::uint32_t>(std::max(0, context.real_attr.max_qp_rd_atom));
      for (ShadowPort& port : context.ports) {
        DirectoryPort p{port.lid.value, port.real_lid.value, {}, {}, port.real_mtu, responders, context.adapter()};
        if (port.gids.empty() || port.real_gids.empty()) d.ports.push_back(p);
        for (std::size_t g = 0; g < port.gids.size() && g < port.real_gids.size(); ++g) {
          if (port.gids[g].empty() && g > 0) continue;
          p.virtual_gid = port.gids[g].gid;
          p.real_gid = port.real_gids[g];
          d.ports.push_back(p);
        }
      }
    }
    for (ShadowQp& qp : r.qps) d.qps.push_back(entry_of(qp));
    for (ShadowSrq& srq : r.srqs)
      if (srq.xrcd != nullptr) d.srqs.push_back(entry_of(srq));
    for (ShadowMr& mr : r.mrs) d.keys.push_back({ShadowPd::of(mr.mr.pd)->id, mr.mr.rkey, mr.real->rkey});
    for (ShadowMw& mw : r.mws)
      d.windows.push_back({ShadowPd::of(mw.mw.pd)->id, window_block(mw.mw.rkey), window_block(mw.real->rkey)});
  }
  std::sort(d.qps.begin(), d.qps.end());
  std::sort(d.srqs.begin(), d.srqs.end());
  values.push_back({job_key("rebuild/" + std::to_string(job_info().member)), encode_directory(d)});
  return job_exchange()->publish_all(values);
}

Status announce_source(const ShadowQp& qp) {
  if (job_info().generation == 0 || !qp.is_datagram()) return {};
  for (const ShadowPort& port : qp.context->ports) {
    auto publish = [&](const ibv_gid& real_gid) {
      const SourceAddress from(port.real_lid.value, real_gid, qp.real->qp_num);
      const DatagramSource source{qp.qp_num.value, port.lid.value, program_source(port, real_gid)};
      return job_exchange()->publish(source_key(from), {reinterpret_cast<const char*>(&source), sizeof(source)});
    };
    if (port.real_lid.value != 0) SHADOWIB_TRY(publish({}));
    // All that the adapter has, since a group may be reached from one that stands for none of the program's.
    for (const RecordedGid& real : port.real_table)
      if (port.real_lid.value == 0 && !real.empty()) SHADOWIB_TRY(publish(real.gid));
  }
  return {};
}

Status choose_qp_num(RealQpNum real, VirtualQpNum* number) {
  return choose_number("qp", real.value, registry().reserved_qp_nums, &number->value);
}

Status choose_srq_num(RealSrqNum real, VirtualSrqNum* number) {
  return choose_number("srq", real.value, registry().reserved_srq_nums, &number->value);
}

void announce_late_qp(const ShadowQp& qp) {
  if (job_info().generation == 0) return;
  Status s = publish_late_number("qp", entry_of(qp));
  if (s.ok()) s = announce_source(qp);
  if (!s.ok()) log_line(LogLevel::kError, "queue pair 0x%x cannot be announced: %s", qp.qp_num.value, s.text());
}

void announce_late_srq(const ShadowSrq& srq) {
  if (job_info().generation == 0) return;
  if (Status s = publish_late_number("srq", entry_of(srq)); !s.ok())
    log_line(LogLevel::kError, "shared receive queue 0x%x cannot be announced: %s", srq.number.value, s.text());
}

void announce_late_mr(const ShadowMr& mr, std::uint32_t pd) {
  if (job_info().generation == 0 || (mr.mr.rkey == mr.real->rkey && !is_late_key(mr.mr.rkey))) return;
  Status s = publish_late_key("mr", pd, mr.mr.rkey, mr.real->rkey);
  if (!s.ok()) log_line(LogLevel::kError, "memory region 0x%x cannot be announced: %s", mr.mr.rkey, s.text());
}

void announce_late_mw(const ShadowMw& mw, std::uint32_t pd) {
  if (job_info().generation == 0 || (mw.mw.rkey == mw.real->rkey && !is_late_key(mw.mw.rkey))) return;
  Status s = publish_late_key("mw", pd, window_block(mw.mw.rkey), window_block(mw.real->rkey));
  if (!s.ok()) log_line(LogLevel::kError, "memory window 0x%x cannot be announced: %s", mw.mw.rkey, s.text());
}

void withdraw_late_qp(const ShadowQp& qp) {
  withdraw_number("qp", *qp.context, qp.qp_num.value, registry().reserved_qp_nums);
}

void withdraw_late_srq(const ShadowSrq& srq) {
  withdraw_number("srq", *srq.context, srq.number.value, registry().reserved_srq_nums);
}

void withdraw_late_mr(std::uint32_t pd, std::uint32_t rkey) {
  if (is_late_key(rkey)) withdraw(late_key("mr", job_info().member, pd, rkey));
}

void withdraw_late_mw(std::uint32_t pd, std::uint32_t rkey) {
  if (is_late_key(rkey)) withdraw(late_key("mw", job_info().member, pd, window_block(rkey)));
}

}  // namespace shadowib
