// Fuzz target: what a peer sends a keeper, before and after it has proved the job's key.
//
// The first byte chooses: 0, the bytes stand for the whole conversation; 1, for what follows the peer's hello; else,
// for what follows a right proof. Odd values above 1 take the bytes for messages: 2 bytes of length, then the text.
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/store/parity_group.h"
#include "hooks/store/parity_pieces.h"
#include "hooks/store/peer_connection.h"
#include "hooks/store/piece.h"
#include "shadowib/base/keyed_proof.h"
#include "shadowib/base/lock.h"

// The keeper's random bytes: the same each time, so that a proof can be sent before they are read.
extern "C" ssize_t getrandom(void* to, std::size_t bytes, unsigned) {
  std::memset(to, 'n', bytes);
  return static_cast<ssize_t>(bytes);
}

namespace {

using namespace shadowib;

constexpr std::size_t kHelloBytes = 40;

std::string hello(char nonce) {
  return std::string("SIBK\2\0\0\0", 8) + std::string(32, nonce);  // KEEPER_PROTOCOL.md
}

std::string proof_after(const std::string& key, const std::string& peers_hello) {
  std::string proof(kProofBytes, '\0');
  const std::string mine = hello('n');
  keyed_proof(reinterpret_cast<const std::uint8_t*>(key.data()), 'C',
              {{peers_hello.data(), kHelloBytes}, {mine.data(), kHelloBytes}},
              reinterpret_cast<std::uint8_t*>(proof.data()));
  return proof;
}

std::string in_messages(std::string_view bytes) {
  std::string stream;
  while (bytes.size() >= 2) {
    std::uint16_t said;
    std::memcpy(&said, bytes.data(), sizeof(said));
    bytes.remove_prefix(sizeof(said));
    const std::string_view text = bytes.substr(0, said);
    const auto length = static_cast<std::uint32_t>(text.size());
    stream.append(reinterpret_cast<const char*>(&length), sizeof(length)).append(text);
    bytes.remove_prefix(text.size());
  }
  return stream;
}

bool right(const std::string& key, const std::string& stream) {
  return stream.size() >= kHelloBytes + kProofBytes && stream.starts_with("SIBK") &&
         stream.compare(kHelloBytes, kProofBytes, proof_after(key, stream)) == 0;
}

// A group that was accepted can make each of its pieces from the others, of ranges that are there.
void look_at(const ParityGroup& group) {
  std::map<std::string, std::uint64_t> sizes;
  std::vector<Piece> pieces = group.pieces();
  for (const Piece& piece : pieces) sizes[piece.file] = piece.bytes;
  pieces.resize(std::min<std::size_t>(pieces.size(), 20));
  for (const Piece& piece : pieces) {
    std::vector<Stretch> stretches;
    if (!plan_piece(
             group, piece.file, [](const std::string&) { return true; }, &stretches)
             .ok())
      std::abort();
    std::uint64_t planned = 0;
    for (const Stretch& stretch : stretches) {
      planned += stretch.bytes;
      for (int host : stretch.sources)
        for (const FileRange& part : element_ranges(group, host, stretch.stripe, stretch.offset, stretch.bytes)) {
          const std::uint64_t there = sizes.at(part.file);
          if (part.file == piece.file || part.offset > there || part.bytes > there - part.offset) std::abort();
        }
    }
    if (planned != piece.bytes) std::abort();
  }
}

// What was understood can be said again, and is the same then.
void look_at(const Fields& fields) {
  Fields again;
  if (!decode_fields(encode_fields(fields), &again) || again != fields) std::abort();
  (void)status_from_fields(fields);
  PieceHosts hosts;
  (void)decode_piece_hosts(field_text(fields, "from"), &hosts);
  std::vector<Piece> pieces, second;
  if (decode_pieces(field_text(fields, "pieces"), &pieces).ok()) {
    const std::string said = encode_pieces(pieces);
    if (!decode_pieces(said, &second).ok() || encode_pieces(second) != said) std::abort();
    for (const Piece& piece : pieces)
      if (piece.file.find('/') != std::string::npos || piece.file[0] == '.') std::abort();
  }
  ParityGroup group;
  if (decode_group(fields, &group).ok()) {
    Fields told, repeated;
    encode_group(group, &told);
    ParityGroup same;
    if (!decode_group(told, &same).ok()) std::abort();
    encode_group(same, &repeated);
    if (told != repeated) std::abort();
    look_at(group);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string key(kJobKeyBytes, 'k');
  std::string stream = data[0] == 0 ? "" : hello('p');
  if (data[0] > 1) stream += proof_after(key, stream);
  stream += data[0] > 1 && data[0] % 2 == 1 ? in_messages(bytes) : std::string(bytes);

  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  if (::send(ends[0], stream.data(), stream.size(), 0) != static_cast<ssize_t>(stream.size())) std::abort();
  ::shutdown(ends[0], SHUT_WR);
  std::unique_ptr<PeerConnection> peer;
  const bool proved = PeerConnection::accept(ends[1], key, monotonic_ns() + 5'000'000'000, &peer).ok();
  if (proved != right(key, stream)) std::abort();
  for (Fields fields; proved && peer->receive(&fields).ok();) look_at(fields);
  ::close(ends[0]);
  return 0;
}
