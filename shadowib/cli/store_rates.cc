#include "shadowib/cli/store_rates.h"

#include <algorithm>

#include "hooks/job/protocol.h"
#include "hooks/store/files.h"

namespace shadowib::cli {
namespace {

constexpr StoreRates kUsual{.latency_s = 0, .network = 1e-9, .coding = 0.1e-9, .disk = 2e-9, .central = 2e-9};
constexpr double kPart = 0.3;  // of a new figure
constexpr std::uint64_t kLeastBytes = 64 << 20;
constexpr double kPerSecond = 1e15;  // a record has femtoseconds a byte

struct Named {
  const char* name;
  double StoreRates::*rate;
};
constexpr Named kRecorded[] = {{"network", &StoreRates::network},
                               {"disk", &StoreRates::disk},
                               {"central", &StoreRates::central},
                               {"lz4", &StoreRates::lz4},
                               {"zstd", &StoreRates::zstd}};

// An image is smaller than memory by pages of zeros, too, but the program may fill these.
void note_part(const CheckpointReport& report, StoreRates* rates) {
  std::uint64_t bytes = 0, page_bytes = 0;
  for (const MemberReport& member : report.members) {
    if (member.page_bytes == 0) return;  // nobody knows of one member
    bytes += member.bytes;
    page_bytes += member.page_bytes;
  }
  if (page_bytes == 0) return;
  const double part = static_cast<double>(bytes) / static_cast<double>(page_bytes);
  if (report.compression == Compression::kLz4) rates->lz4 = part;
  if (report.compression == Compression::kZstd) rates->zstd = part;
}

void move(double* rate, double seconds, double bytes) { *rate += kPart * (seconds / bytes - *rate); }

}  // namespace

StoreRates read_rates(const std::string& directory, const std::string& job) {
  StoreRates rates = kUsual;
  std::string text;
  Fields fields;
  if (!read_file(rates_path(directory, job), &text).ok() || !decode_fields(text, &fields)) return rates;
  for (const Named& named : kRecorded)
    if (const std::uint64_t value = field_number(fields, named.name); value > 0)
      rates.*named.rate = static_cast<double>(value) / kPerSecond;
  return rates;
}

StoreRates moved_by(const StoreRates& before, const CheckpointReport& report) {
  StoreRates rates = before;
  std::uint64_t all = 0;
  std::int64_t save_ns = 0;
  for (const MemberReport& member : report.members) {
    all += member.bytes;
    save_ns = std::max(save_ns, member.save_ns);
  }
  const double save_s = static_cast<double>(save_ns) / 1e9, copies_s = static_cast<double>(report.copies_ns) / 1e9;
  const StoreSpec& store = report.store;
  note_part(report, &rates);
  if (!store.is_near() && all >= kLeastBytes) move(&rates.central, save_s, static_cast<double>(all));
  if (!store.is_near() || report.most_bytes < kLeastBytes) return rates;
  const auto most = static_cast<double>(report.most_bytes);
  if (store.tier == Tier::kDisk) move(&rates.disk, save_s, most);
  if (store.has_copies()) move(&rates.network, copies_s, most);
  // A parity is coded on the way: what is left is the way's.
  if (store.has_parity())
    move(&rates.network, std::max(copies_s / store.parities - rates.coding * most, rates.coding * most), most);
  return rates;
}

std::string encode_rates(const StoreRates& rates) {
  Fields fields;
  for (const Named& named : kRecorded)
    fields[named.name] = std::to_string(static_cast<std::uint64_t>(rates.*named.rate * kPerSecond));
  return encode_fields(fields);
}

std::string rates_path(const std::string& directory, const std::string& job) {
  return job_paths(directory, job).top + "/rates";
}

}  // namespace shadowib::cli
