#include "hooks/store/parity_group.h"

#include <algorithm>
#include <cerrno>

namespace shadowib {
namespace {

// Their sum does not overflow.
constexpr std::uint64_t kMostPieceBytes = std::uint64_t{1} << 46;
constexpr std::size_t kMostGroupPieces = 1 << 16;

std::uint64_t blob_bytes(const ParityGroup::Host& host) {
  std::uint64_t bytes = 0;
  for (const Piece& image : host.images) bytes += image.bytes;
  return bytes;
}

// All that the element holds in the range is there.
bool is_present(const ParityGroup& group, int host, const Stretch& range, const Present& present) {
  const std::vector<FileRange> ranges = element_ranges(group, host, range.stripe, range.offset, range.bytes);
  return std::all_of(ranges.begin(), ranges.end(), [&](const FileRange& part) { return present(part.file); });
}

// Where images begin and end in the elements of a stripe, within the range, and the ends of the range.
std::set<std::uint64_t> bounds(const ParityGroup& group, const Stretch& range) {
  std::set<std::uint64_t> at{range.offset, range.offset + range.bytes};
  for (int host = 0; host < group.shape().hosts; ++host) {
    std::uint64_t offset = range.offset;
    for (const FileRange& part : element_ranges(group, host, range.stripe, range.offset, range.bytes))
      at.insert(offset += part.bytes);
  }
  return at;
}

// Splits the range where other elements can be had. *lost is the host whose element is wanted.
Status plan_range(const ParityGroup& group, const Stretch& range, const Present& present,
                  std::vector<Stretch>* stretches) {
  const auto needed = static_cast<std::size_t>(group.shape().segments());
  const std::set<std::uint64_t> at = bounds(group, range);
  for (auto begin = at.begin(), end = std::next(begin); end != at.end(); begin = end++) {
    Stretch part{range.stripe, range.host, *begin, *end - *begin, {}};
    for (int host = 0; host < group.shape().hosts && part.sources.size() < needed; ++host)
      if (host != range.host && is_present(group, host, part, present)) part.sources.push_back(host);
    if (part.sources.size() < needed)
      return Status::of(Code::kNotFound, ENOENT, "of a stripe over %d hosts %zu parts are left, and %zu are needed",
                        group.shape().hosts, part.sources.size(), needed);
    Stretch* last = stretches->empty() ? nullptr : &stretches->back();
    if (last != nullptr && last->stripe == part.stripe && last->sources == part.sources &&
        last->offset + last->bytes == part.offset)
      last->bytes += part.bytes;
    else
      stretches->push_back(std::move(part));
  }
  return {};
}

// The elements, and ranges of them, that make a piece.
std::vector<Stretch> ranges_of(const ParityGroup& group, int host, const std::string& file) {
  const ParityShape shape = group.shape();
  const ParityGroup::Host& row = group.hosts[static_cast<std::size_t>(host)];
  const std::uint64_t segment = group.segment;
  std::vector<Stretch> ranges;
  if (segment == 0) return ranges;
  if (file == row.parity.file) {
    for (int parity = 0; parity < shape.losses; ++parity)
      ranges.push_back({shape.stripe_of_parity(host, parity), host, 0, segment, {}});
    return ranges;
  }
  std::uint64_t at = 0, end = 0;
  for (const Piece& image : row.images) {
    at = end, end += image.bytes;
    if (image.file == file) break;
  }
  while (at < end) {
    const std::uint64_t offset = at % segment, bytes = std::min(segment - offset, end - at);
    ranges.push_back({shape.stripe_of_segment(host, static_cast<int>(at / segment)), host, offset, bytes, {}});
    at += bytes;
  }
  return ranges;
}

// All images are on domains that are left, or can be made from what is there.
bool survives(const ParityGroup& group, const PieceDomains& domains, const std::set<std::string>& lost) {
  const Present present = [&](const std::string& file) {
    const auto at = domains.find(file);
    return at != domains.end() && std::any_of(at->second.begin(), at->second.end(),
                                              [&lost](const std::string& domain) { return !lost.contains(domain); });
  };
  std::vector<Stretch> stretches;
  for (const ParityGroup::Host& host : group.hosts)
    for (const Piece& image : host.images)
      if (!present(image.file) && !plan_piece(group, image.file, present, &stretches).ok()) return false;
  return true;
}

// Every choice of `count` domains behind `from`, besides those that are lost already.
bool survives_any(const ParityGroup& group, const PieceDomains& domains, const std::vector<std::string>& all,
                  std::size_t from, int count, std::set<std::string>* lost) {
  if (count == 0) return survives(group, domains, *lost);
  for (std::size_t i = from; i < all.size(); ++i) {
    lost->insert(all[i]);
    const bool well = survives_any(group, domains, all, i + 1, count - 1, lost);
    lost->erase(all[i]);
    if (!well) return false;
  }
  return true;
}

std::string name(const char* what, std::size_t number) { return what + std::to_string(number); }

}  // namespace

void ParityGroup::set_sizes() {
  std::uint64_t largest = 0;
  for (const Host& host : hosts) largest = std::max(largest, blob_bytes(host));
  segment = segment_bytes(shape(), largest);
  for (Host& host : hosts) host.parity.bytes = segment * static_cast<std::uint64_t>(losses);
}

Status ParityGroup::settle() {
  const Status wrong(Code::kVersion, 0, "what is called a group of hosts is none");
  const std::vector<Piece> told = pieces();
  const int count = static_cast<int>(hosts.size());
  std::set<std::string> files;
  if (count < 2 || count > kMostGroupHosts || losses < 1 || losses >= count || told.size() > kMostGroupPieces)
    return wrong;
  for (const Piece& piece : told)
    if (!valid_piece_name(piece.file) || piece.bytes > kMostPieceBytes || !files.insert(piece.file).second)
      return wrong;
  set_sizes();
  const std::vector<Piece> right = pieces();
  for (std::size_t i = 0; i < told.size(); ++i)
    if (told[i].bytes != right[i].bytes) return wrong;
  return {};
}

std::vector<Piece> ParityGroup::pieces() const {
  std::vector<Piece> all;
  for (const Host& host : hosts) {
    all.insert(all.end(), host.images.begin(), host.images.end());
    all.push_back(host.parity);
  }
  return all;
}

int ParityGroup::row_of(std::string_view file) const {
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const std::vector<Piece>& images = hosts[i].images;
    if (hosts[i].parity.file == file ||
        std::any_of(images.begin(), images.end(), [file](const Piece& image) { return image.file == file; }))
      return static_cast<int>(i);
  }
  return -1;
}

std::vector<FileRange> blob_ranges(const ParityGroup::Host& host, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<FileRange> ranges;
  std::uint64_t begin = 0;
  for (const Piece& image : host.images) {
    const std::uint64_t from = std::max(begin, offset), to = std::min(begin + image.bytes, offset + bytes);
    if (from < to) ranges.push_back({image.file, from - begin, to - from});
    begin += image.bytes;
  }
  return ranges;
}

std::vector<FileRange> element_ranges(const ParityGroup& group, int host, int stripe, std::uint64_t offset,
                                      std::uint64_t bytes) {
  const ParityShape shape = group.shape();
  const ParityGroup::Host& row = group.hosts[static_cast<std::size_t>(host)];
  const int element = shape.row(host, stripe);
  const std::uint64_t segment = group.segment;
  if (element >= shape.segments())
    return {{row.parity.file, static_cast<std::uint64_t>(element - shape.segments()) * segment + offset, bytes}};
  return blob_ranges(row, static_cast<std::uint64_t>(shape.segment_in(host, stripe)) * segment + offset, bytes);
}

Status plan_piece(const ParityGroup& group, const std::string& file, const Present& present,
                  std::vector<Stretch>* stretches) {
  stretches->clear();
  const int host = group.row_of(file);
  if (host < 0) return Status::of(Code::kVersion, 0, "%.60s is no piece of the group", file.c_str());
  for (const Stretch& range : ranges_of(group, host, file))
    SHADOWIB_TRY(plan_range(group, range, present, stretches));
  return {};
}

int survived_losses(const ParityGroup& group, const PieceDomains& domains) {
  std::set<std::string> all, lost;
  for (const auto& [file, of_file] : domains)
    if (group.row_of(file) >= 0) all.insert(of_file.begin(), of_file.end());
  for (int count = std::min(group.losses, static_cast<int>(all.size())); count >= 0; --count)
    if (survives_any(group, domains, {all.begin(), all.end()}, 0, count, &lost)) return count;
  return -1;
}

void encode_group(const ParityGroup& group, Fields* fields) {
  (*fields)["losses"] = std::to_string(group.losses);
  (*fields)["hosts"] = std::to_string(group.hosts.size());
  for (std::size_t i = 0; i < group.hosts.size(); ++i) {
    (*fields)[name("images", i)] = encode_pieces(group.hosts[i].images);
    (*fields)[name("parity", i)] = encode_pieces({group.hosts[i].parity});
  }
}

Status decode_group(const Fields& fields, ParityGroup* group) {
  *group = {};
  const std::uint64_t losses = field_number(fields, "losses"), hosts = field_number(fields, "hosts");
  if (losses > kMostGroupHosts || hosts > kMostGroupHosts)
    return Status(Code::kVersion, 0, "the request names a group that is too large");
  group->losses = static_cast<int>(losses);
  for (std::size_t i = 0; i < hosts; ++i) {
    ParityGroup::Host& host = group->hosts.emplace_back();
    std::vector<Piece> parity;
    SHADOWIB_TRY(decode_pieces(field_text(fields, name("images", i).c_str()), &host.images));
    SHADOWIB_TRY(decode_pieces(field_text(fields, name("parity", i).c_str()), &parity));
    if (parity.size() != 1) return Status(Code::kVersion, 0, "the request names a group without parities");
    host.parity = parity.front();
  }
  return group->settle();
}

}  // namespace shadowib
