#include "hooks/store/keeper_client.h"

#include <cerrno>
#include <sstream>

#include "shadowib/base/this_host.h"

namespace shadowib {
namespace {

Status of_host(const KeeperInfo& at, const Status& status) {
  return status.ok() ? status
                     : Status::of(status.code(), status.error(), "keeper on host %.60s: %.280s", at.name.c_str(),
                                  status.text());
}

Status call(PeerConnection& peer, const Fields& request, Fields* reply) {
  SHADOWIB_TRY(peer.send(request));
  reply->clear();
  SHADOWIB_TRY(peer.receive(reply));
  return status_from_fields(*reply);
}

Fields request_of(const char* operation, const NearSetId& set) {
  return {{"op", operation}, {"place", set.place}, {"set", set.set_id}};
}

// Asks about `pieces`. *names gets those in the field `field` of the reply.
Status ask_for_names(const std::string& directory, const KeeperInfo& at, const char* operation, const NearSetId& set,
                     const std::vector<Piece>& pieces, const char* field, std::int64_t deadline_ns,
                     std::set<std::string>* names) {
  std::unique_ptr<PeerConnection> peer;
  Fields request = request_of(operation, set), reply;
  request["pieces"] = encode_pieces(pieces);
  names->clear();
  SHADOWIB_TRY(of_host(at, connect_keeper(directory, set.job, at, deadline_ns, &peer)));
  SHADOWIB_TRY(of_host(at, call(*peer, request, &reply)));
  std::istringstream words(field_text(reply, field));
  for (std::string word; words >> word;) names->insert(word);
  return {};
}

Status fetch_piece(PeerConnection& peer, const std::string& directory, const NearSetId& set, const Piece& piece,
                   const Moved& moved) {
  Fields request = request_of("get", set), reply;
  request["file"] = piece.file;
  SHADOWIB_TRY(call(peer, request, &reply));
  if (field_number(reply, "bytes") != piece.bytes)
    return Status::of(Code::kCorrupt, 0, "%.60s has %llu bytes there, the manifest says %llu", piece.file.c_str(),
                      static_cast<unsigned long long>(field_number(reply, "bytes")),
                      static_cast<unsigned long long>(piece.bytes));
  return write_piece(set, directory, piece, [&](char* to, std::size_t bytes) {
    SHADOWIB_TRY(peer.receive_bytes(to, bytes));
    if (moved) moved(bytes);
    return Status();
  });
}

}  // namespace

// A restart gives the job another key, while shares of it that are still behind ask for images. The keeper reads the
// key later than who comes. So where they differ, there is a newer one to read.
Status connect_keeper(const std::string& directory, const std::string& job, const KeeperInfo& at,
                      std::int64_t deadline_ns, std::unique_ptr<PeerConnection>* peer) {
  std::vector<PeerAddress> addresses;
  const bool here = at.host == this_host();
  // Another host has a loopback interface of its own.
  for (const PeerAddress& address : at.addresses)
    if (address.host.starts_with("127.") == here) addresses.push_back(address);
  std::string key, newest;
  SHADOWIB_TRY(read_job_key(directory, job, &key));
  for (;; key = newest) {
    const Status status =
        PeerConnection::connect(addresses.empty() ? at.addresses : addresses, key, deadline_ns, peer);
    if (status.ok() || !read_job_key(directory, job, &newest).ok() || newest == key) return status;
  }
}

Status ask_for_range(PeerConnection& peer, const NearSetId& set, const FileRange& range) {
  Fields request = request_of("get", set), reply;
  request["file"] = range.file;
  request["offset"] = std::to_string(range.offset);
  request["bytes"] = std::to_string(range.bytes);
  SHADOWIB_TRY(call(peer, request, &reply));
  return field_number(reply, "bytes") == range.bytes
             ? Status()
             : Status::of(Code::kCorrupt, 0, "%.60s is not as long there as it has been", range.file.c_str());
}

Status fetch_pieces(const std::string& directory, const KeeperInfo& from, const NearSetId& set,
                    const std::vector<Piece>& pieces, std::int64_t deadline_ns, const Moved& moved) {
  std::unique_ptr<PeerConnection> peer;
  for (const Piece& piece : pieces) {
    if (check_piece(set, piece).ok()) continue;
    if (peer == nullptr) SHADOWIB_TRY(of_host(from, connect_keeper(directory, set.job, from, deadline_ns, &peer)));
    SHADOWIB_TRY(of_host(from, fetch_piece(*peer, directory, set, piece, moved)));
  }
  return {};
}

Status ask_to_pull(const std::string& directory, const KeeperInfo& at, const std::string& from, const NearSetId& set,
                   const std::vector<Piece>& pieces, std::int64_t deadline_ns) {
  std::unique_ptr<PeerConnection> peer;
  Fields request = request_of("pull", set), reply;
  request["from"] = from;
  request["pieces"] = encode_pieces(pieces);
  SHADOWIB_TRY(of_host(at, connect_keeper(directory, set.job, at, deadline_ns, &peer)));
  return of_host(at, call(*peer, request, &reply));
}

Status ask_what_is_there(const std::string& directory, const KeeperInfo& at, const NearSetId& set,
                         const std::vector<Piece>& pieces, std::int64_t deadline_ns, std::set<std::string>* there) {
  return ask_for_names(directory, at, "look", set, pieces, "there", deadline_ns, there);
}

Status ask_what_is_good(const std::string& directory, const KeeperInfo& at, const NearSetId& set,
                        const std::vector<Piece>& pieces, std::int64_t deadline_ns, std::set<std::string>* good) {
  return ask_for_names(directory, at, "check", set, pieces, "good", deadline_ns, good);
}

Status ask_for_hashes(const std::string& directory, const KeeperInfo& at, const NearSetId& set,
                      const ParityGroup& group, int row, std::int64_t deadline_ns, SegmentHashes* hashes) {
  std::unique_ptr<PeerConnection> peer;
  Fields request = request_of("hash", set), reply;
  encode_group(group, &request);
  request["row"] = std::to_string(row);
  SHADOWIB_TRY(of_host(at, connect_keeper(directory, set.job, at, deadline_ns, &peer)));
  SHADOWIB_TRY(of_host(at, call(*peer, request, &reply)));
  hashes->clear();
  std::istringstream words(field_text(reply, "hashes"));
  for (std::string word; words >> word;) hashes->push_back(word);
  return hashes->size() == static_cast<std::size_t>(group.shape().segments())
             ? Status()
             : of_host(at, Status(Code::kVersion, 0, "it tells of another number of segments"));
}

Status ask_to_make(const std::string& directory, const KeeperInfo& at, const NearSetId& set, const ParityGroup& group,
                   const PieceHosts& hosts, const std::vector<SegmentHashes>& hashes, std::int64_t deadline_ns,
                   Piece* piece, std::string* failed) {
  std::unique_ptr<PeerConnection> peer;
  Fields request = request_of("make", set), reply;
  encode_group(group, &request);
  request["piece"] = encode_pieces({*piece});
  request["from"] = encode_piece_hosts(hosts);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    std::string& text = request["hashes" + std::to_string(i)];
    for (const std::string& hash : hashes[i]) text += (text.empty() ? "" : " ") + hash;
  }
  *failed = at.host;
  SHADOWIB_TRY(of_host(at, connect_keeper(directory, set.job, at, deadline_ns, &peer)));
  SHADOWIB_TRY(of_host(at, peer->send(request)));
  SHADOWIB_TRY(of_host(at, peer->receive(&reply)));
  *failed = field_text(reply, "failed");
  SHADOWIB_TRY(of_host(at, status_from_fields(reply)));
  std::vector<Piece> made;
  if (!decode_pieces(field_text(reply, "piece"), &made).ok() || made.size() != 1 || made[0].file != piece->file ||
      made[0].bytes != piece->bytes || made[0].xxh3 == kNoHash)
    return of_host(at, Status(Code::kVersion, 0, "it has made another piece"));
  *piece = made[0];
  return {};
}

Status ask_to_drop(const std::string& directory, const KeeperInfo& at, const NearSetId& set,
                   std::int64_t deadline_ns) {
  std::unique_ptr<PeerConnection> peer;
  Fields reply;
  SHADOWIB_TRY(of_host(at, connect_keeper(directory, set.job, at, deadline_ns, &peer)));
  return of_host(at, call(*peer, request_of("drop", set), &reply));
}

Status ask_to_collect(const std::string& directory, const std::string& job, const KeeperInfo& at, bool dry_run,
                      std::int64_t deadline_ns, std::vector<std::string>* removed) {
  std::unique_ptr<PeerConnection> peer;
  Fields reply;
  SHADOWIB_TRY(of_host(at, connect_keeper(directory, job, at, deadline_ns, &peer)));
  SHADOWIB_TRY(of_host(at, call(*peer, {{"op", "collect"}, {"dry_run", dry_run ? "1" : "0"}}, &reply)));
  for (const auto& [name, path] : reply)
    if (name.starts_with("removed")) removed->push_back(path);
  return {};
}

}  // namespace shadowib
