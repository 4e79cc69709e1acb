// Verbs that need no device and no object: rates, struct conversions of the kernel ABI, sysfs. Nothing of the real
// library is needed for them. Source: ibv_rate_to_mult(3), ibv_rate_to_mbps(3); rdma-core
// libibverbs/{verbs,marshall,sysfs}.c.
#include <fcntl.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "shadowib/base/unowned_descriptors.h"

namespace {

struct Rate {
  ibv_rate rate;
  int multiple;  // of 2.5 Gbit/s; -1: libibverbs gives none
  int mbps;
};
constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},     {IBV_RATE_5_GBPS, 2, 5000},        {IBV_RATE_10_GBPS, 4, 10000},
    {IBV_RATE_20_GBPS, 8, 20000},     {IBV_RATE_30_GBPS, 12, 30000},     {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},    {IBV_RATE_80_GBPS, 32, 80000},     {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_14_GBPS, -1, 14062},    {IBV_RATE_56_GBPS, -1, 56250},     {IBV_RATE_112_GBPS, -1, 112500},
    {IBV_RATE_168_GBPS, -1, 168750},  {IBV_RATE_25_GBPS, -1, 25781},     {IBV_RATE_100_GBPS, -1, 103125},
    {IBV_RATE_200_GBPS, -1, 206250},  {IBV_RATE_300_GBPS, -1, 309375},   {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},    {IBV_RATE_400_GBPS, 160, 425000},  {IBV_RATE_600_GBPS, 240, 637500},
    {IBV_RATE_800_GBPS, 320, 850000}, {IBV_RATE_1200_GBPS, 480, 1275000}};

char g_sysfs_path[IBV_SYSFS_PATH_MAX];
void (*g_on_sysfs_path)() = nullptr;

}  // namespace

extern "C" {

int shadowib_ibv_rate_to_mult(ibv_rate rate) {
  for (const Rate& r : kRates)
    if (r.rate == rate) return r.multiple;
  return -1;
}

ibv_rate shadowib_mult_to_ibv_rate(int multiple) {
  for (const Rate& r : kRates)
    if (r.multiple == multiple && multiple > 0) return r.rate;
  return IBV_RATE_MAX;
}

int shadowib_ibv_rate_to_mbps(ibv_rate rate) {
  for (const Rate& r : kRates)
    if (r.rate == rate) return r.mbps;
  return -1;
}

ibv_rate shadowib_mbps_to_ibv_rate(int mbps) {
  for (const Rate& r : kRates)
    if (r.mbps == mbps) return r.rate;
  return IBV_RATE_MAX;
}

void shadowib_ibv_copy_ah_attr_from_kern(ibv_ah_attr* to, const ib_uverbs_ah_attr* from) {
  std::memcpy(to->grh.dgid.raw, from->grh.dgid, sizeof(to->grh.dgid));
  to->grh.flow_label = from->grh.flow_label;
  to->grh.sgid_index = static_cast<std::uint8_t>(from->grh.sgid_index);
  to->grh.hop_limit = from->grh.hop_limit;
  to->grh.traffic_class = from->grh.traffic_class;
  to->dlid = from->dlid;
  to->sl = from->sl;
  to->src_path_bits = from->src_path_bits;
  to->static_rate = from->static_rate;
  to->is_global = from->is_global;
  to->port_num = from->port_num;
}

void shadowib_ibv_copy_qp_attr_from_kern(ibv_qp_attr* to, const ib_uverbs_qp_attr* from) {
  to->cur_qp_state = static_cast<ibv_qp_state>(from->cur_qp_state);
  to->path_mtu = static_cast<ibv_mtu>(from->path_mtu);
  to->path_mig_state = static_cast<ibv_mig_state>(from->path_mig_state);
  to->qkey = from->qkey;
  to->rq_psn = from->rq_psn;
  to->sq_psn = from->sq_psn;
  to->dest_qp_num = from->dest_qp_num;
  to->qp_access_flags = from->qp_access_flags;
  to->cap = {from->max_send_wr, from->max_recv_wr, from->max_send_sge, from->max_recv_sge, from->max_inline_data};
  shadowib_ibv_copy_ah_attr_from_kern(&to->ah_attr, &from->ah_attr);
  shadowib_ibv_copy_ah_attr_from_kern(&to->alt_ah_attr, &from->alt_ah_attr);
  to->pkey_index = from->pkey_index;
  to->alt_pkey_index = from->alt_pkey_index;
  to->en_sqd_async_notify = from->en_sqd_async_notify;
  to->sq_draining = from->sq_draining;
  to->max_rd_atomic = from->max_rd_atomic;
  to->max_dest_rd_atomic = from->max_dest_rd_atomic;
  to->min_rnr_timer = from->min_rnr_timer;
  to->port_num = from->port_num;
  to->timeout = from->timeout;
  to->retry_cnt = from->retry_cnt;
  to->rnr_retry = from->rnr_retry;
  to->alt_port_num = from->alt_port_num;
  to->alt_timeout = from->alt_timeout;
}
}

namespace {

// The same fields in both directions; the gids are arrays on one side and unions on the other.
template <class To, class From>
void copy_path_fields(To* to, const From* from) {
  std::memcpy(&to->dgid, &from->dgid, 16);
  std::memcpy(&to->sgid, &from->sgid, 16);
  to->dlid = from->dlid;
  to->slid = from->slid;
  to->raw_traffic = from->raw_traffic;
  to->flow_label = from->flow_label;
  to->hop_limit = from->hop_limit;
  to->traffic_class = from->traffic_class;
  to->reversible = from->reversible;
  to->numb_path = from->numb_path;
  to->pkey = from->pkey;
  to->sl = from->sl;
  to->mtu_selector = from->mtu_selector;
  to->mtu = from->mtu;
  to->rate_selector = from->rate_selector;
  to->rate = from->rate;
  to->packet_life_time = from->packet_life_time;
  to->preference = from->preference;
  to->packet_life_time_selector = from->packet_life_time_selector;
}

}  // namespace

extern "C" {

void shadowib_ibv_copy_path_rec_from_kern(ibv_sa_path_rec* to, const ib_user_path_rec* from) {
  copy_path_fields(to, from);
}

void shadowib_ibv_copy_path_rec_to_kern(ib_user_path_rec* to, const ibv_sa_path_rec* from) {
  copy_path_fields(to, from);
}

void shadowib_on_sysfs_path(void (*function)()) { g_on_sysfs_path = function; }

// SYSFS_PATH without trailing slashes, unless setuid; else /sys. Every caller computes the same text.
const char* shadowib_ibv_get_sysfs_path(void) {
  if (g_on_sysfs_path != nullptr) g_on_sysfs_path();
  if (g_sysfs_path[0] != '\0') return g_sysfs_path;
  const char* path = ::getuid() == ::geteuid() ? std::getenv("SYSFS_PATH") : nullptr;
  char text[sizeof(g_sysfs_path)];
  std::snprintf(text, sizeof(text), "%s", path ? path : "/sys");
  for (std::size_t n = std::strlen(text); n > 0 && text[n - 1] == '/'; --n) text[n - 1] = '\0';
  std::memcpy(g_sysfs_path, text, sizeof(text));
  return g_sysfs_path;
}

// Bytes read without the trailing newline, terminated; -1 if it cannot be read or does not fit.
int shadowib_ibv_read_sysfs_file(const char* directory, const char* file, char* buffer, std::size_t size) {
  char path[4096];
  if (std::snprintf(path, sizeof(path), "%s/%s", directory, file) >= static_cast<int>(sizeof(path))) return -1;
  shadowib::UnownedDescriptors unowned;
  int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t length = ::read(fd, buffer, size);
  ::close(fd);
  if (length <= 0) return static_cast<int>(length);
  if (buffer[length - 1] == '\n')
    buffer[--length] = '\0';
  else if (static_cast<std::size_t>(length) < size)
    buffer[length] = '\0';
  else
    return -1;
  return static_cast<int>(length);
}
}
