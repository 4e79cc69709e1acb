#include "hooks/store/parity_pieces.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <sstream>
#include <utility>

#include "hooks/store/files.h"
#include "hooks/store/hex_hash.h"
#include "hooks/store/keeper_client.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr std::int64_t kFreshNs = 60'000'000'000;  // a keeper closes connections that are idle for long

// A connection for each stream and host, so that no stream waits for another.
class KeeperRanges : public RangeSource {
 public:
  KeeperRanges(const std::string& directory, const NearSetId& set, const PieceHosts& hosts, std::int64_t deadline_ns)
      : directory_(directory), set_(set), hosts_(hosts), deadline_ns_(deadline_ns) {}

  Status open(int stream, const FileRange& range) override {
    const auto at = hosts_.find(range.file);
    if (at == hosts_.end()) return Status::of(Code::kNotFound, ENOENT, "%.60s is on no host", range.file.c_str());
    Peer& peer = peers_[{stream, at->second}];
    reading_[stream] = &peer;
    peer.host = at->second;
    return note(peer, ask(peer, range));
  }

  Status read(int stream, char* to, std::size_t bytes) override {
    Peer& peer = *reading_.at(stream);
    peer.used_ns = monotonic_ns();
    return note(peer, peer.connection->receive_bytes(to, bytes));
  }

  // The host whose keeper failed first.
  const std::string& failed() const { return failed_; }

 private:
  struct Peer {
    std::string host, name;
    std::unique_ptr<PeerConnection> connection;
    std::int64_t used_ns = 0;
  };

  Status ask(Peer& peer, const FileRange& range) {
    if (peer.connection == nullptr || monotonic_ns() - peer.used_ns > kFreshNs) {
      KeeperInfo keeper;
      peer.connection.reset();
      SHADOWIB_TRY(find_keeper(directory_, set_.job, peer.host, &keeper));
      peer.name = keeper.name;
      SHADOWIB_TRY(connect_keeper(directory_, set_.job, keeper, deadline_ns_, &peer.connection));
    }
    peer.used_ns = monotonic_ns();
    return ask_for_range(*peer.connection, set_, range);
  }

  Status note(const Peer& peer, const Status& status) {
    if (status.ok()) return status;
    if (failed_.empty()) failed_ = peer.host;
    return peer.name.empty() ? status
                             : Status::of(status.code(), status.error(), "keeper on host %.60s: %.280s",
                                          peer.name.c_str(), status.text());
  }

  const std::string& directory_;
  const NearSetId& set_;
  const PieceHosts& hosts_;
  const std::int64_t deadline_ns_;
  std::map<std::pair<int, std::string>, Peer> peers_;
  std::map<int, Peer*> reading_;
  std::string failed_;
};

// Hashes of the segments of a blob that is read in order.
class Segments {
 public:
  explicit Segments(std::uint64_t segment) : segment_(segment) {}
  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::uint64_t part = std::min<std::uint64_t>(segment_ - filled_, bytes.size());
      hash_->add(bytes.substr(0, part));
      bytes.remove_prefix(part);
      filled_ += part;
      if (filled_ == segment_) next();
    }
  }
  SegmentHashes end(int count) {
    while (hashes_.size() < static_cast<std::size_t>(count)) next();
    return std::move(hashes_);
  }

 private:
  void next() {
    hashes_.push_back(hash_->hex());
    hash_ = std::make_unique<HexHash>();
    filled_ = 0;
  }
  const std::uint64_t segment_;
  std::uint64_t filled_ = 0;
  std::unique_ptr<HexHash> hash_ = std::make_unique<HexHash>();
  SegmentHashes hashes_;
};

Status read_image(const NearSetId& set, const Piece& image, std::vector<char>* buffer, Segments* segments) {
  int fd = -1;
  std::uint64_t bytes = 0;
  HexHash hash;
  Status status = open_piece(set, image.file, &fd, &bytes);
  if (!status.ok()) return status;
  for (std::uint64_t at = 0; status.ok() && bytes == image.bytes && at < bytes;) {
    const std::size_t part = std::min<std::uint64_t>(bytes - at, buffer->size());
    status = read_range(fd, at, buffer->data(), part);
    if (!status.ok()) break;
    hash.add({buffer->data(), part});
    segments->add({buffer->data(), part});
    at += part;
  }
  ::close(fd);
  SHADOWIB_TRY(status);
  return bytes == image.bytes && hash.hex() == image.xxh3
             ? Status()
             : Status::of(Code::kCorrupt, 0, "%.60s is not the image that its process has saved", image.file.c_str());
}

bool is_parity(const ParityGroup& group, const std::string& file) {
  return std::any_of(group.hosts.begin(), group.hosts.end(),
                     [&file](const ParityGroup::Host& host) { return host.parity.file == file; });
}

}  // namespace

std::string encode_piece_hosts(const PieceHosts& hosts) {
  std::string text;
  for (const auto& [file, host] : hosts) text += (text.empty() ? "" : " ") + file + ":" + host;
  return text;
}

Status decode_piece_hosts(const std::string& text, PieceHosts* hosts) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t colon = word.find(':');
    const std::string file = word.substr(0, colon), host = colon == std::string::npos ? "" : word.substr(colon + 1);
    if (!valid_piece_name(file) || !valid_piece_name(host))
      return Status::of(Code::kVersion, 0, "'%.100s' is no piece on a host", word.c_str());
    (*hosts)[file] = host;
  }
  return {};
}

Status hash_segments(const NearSetId& set, const ParityGroup& group, int row, SegmentHashes* hashes) {
  Segments segments(group.segment);
  std::vector<char> buffer(kFileStep);
  for (const Piece& image : group.hosts[static_cast<std::size_t>(row)].images)
    SHADOWIB_TRY(read_image(set, image, &buffer, &segments));
  *hashes = segments.end(group.shape().segments());
  return {};
}

Status make_piece(const std::string& directory, const NearSetId& set, const ParityGroup& group,
                  const PieceHosts& hosts, const std::vector<SegmentHashes>& hashes, std::int64_t deadline_ns,
                  Piece* piece, std::string* failed, const Moved& moved) {
  std::vector<Stretch> stretches;
  failed->clear();
  const bool is_new = piece->xxh3 == kNoHash;
  const std::vector<Piece> pieces = group.pieces();
  const auto known =
      std::find_if(pieces.begin(), pieces.end(), [piece](const Piece& p) { return p.file == piece->file; });
  if (known == pieces.end() || known->bytes != piece->bytes || (is_new && !is_parity(group, piece->file)))
    return Status::of(Code::kVersion, 0, "%.60s is no piece of the group", piece->file.c_str());
  if (!is_new && check_piece(set, *piece).ok()) return {};
  SHADOWIB_TRY(plan_piece(
      group, piece->file, [&hosts](const std::string& file) { return hosts.contains(file); }, &stretches));
  KeeperRanges ranges(directory, set, hosts, deadline_ns);
  PieceMaker maker(group, stretches, ranges);
  if (is_new) maker.expect(hashes);
  const auto next = [&](char* to, std::size_t bytes) {
    SHADOWIB_TRY(maker.next(to, bytes));
    if (moved) moved(bytes);
    return Status();
  };
  const Status status = write_new_piece(set, directory, next, piece);
  *failed = ranges.failed();
  return status;
}

}  // namespace shadowib
