#include "hooks/store/far_set.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <tuple>

#include "hooks/job/job_directory.h"
#include "hooks/store/hex_hash.h"
#include "shadowib/base/json_value.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr int kListFormat = 1;
constexpr std::size_t kMostText = 64 << 20;

void sleep_ns(std::int64_t ns) {
  timespec left{ns / 1000000000, ns % 1000000000};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Holds bytes back, so that no more go a second than may.
class Rate {
 public:
  explicit Rate(const FlushOptions& options) : options_(options) {}
  void moved(std::size_t bytes) {
    if (options_.moved) options_.moved(bytes);
    if (options_.bytes_per_s == 0) return;
    bytes_ += bytes;
    const auto due_ns =
        static_cast<std::int64_t>(static_cast<double>(bytes_) * 1e9 / static_cast<double>(options_.bytes_per_s));
    if (const std::int64_t ahead_ns = began_ns_ + due_ns - monotonic_ns(); ahead_ns > 0) sleep_ns(ahead_ns);
  }

 private:
  const FlushOptions& options_;
  const std::int64_t began_ns_ = monotonic_ns();
  std::uint64_t bytes_ = 0;
};

class Flush {
 public:
  Flush(FarPlace& place, std::string prefix, const FlushOptions& options, FlushReport* report)
      : place_(place), prefix_(std::move(prefix)), options_(options), rate_(options), report_(report) {}

  Status all(const std::vector<FarPiece>& pieces) {
    std::vector<const FarPiece*> missing;
    for (const FarPiece& piece : pieces) {
      bool good = false;
      SHADOWIB_TRY(try_again(options_, [&] { return is_there(piece.piece, &good); }));
      if (good)
        ++report_->present;
      else
        missing.push_back(&piece);
    }
    if (missing.empty()) return {};
    const FarPiece& last = pieces.back();
    // An object of a set that is listed is never replaced: the set goes first.
    if (missing.back() != &last) {
      --report_->present;
      SHADOWIB_TRY(try_again(options_, [&] { return place_.remove(prefix_ + last.piece.file); }));
      missing.push_back(&last);
    }
    for (const FarPiece* piece : missing) SHADOWIB_TRY(send(*piece));
    return {};
  }

 private:
  Status is_there(const Piece& piece, bool* good) {
    FarObject object;
    const std::string name = prefix_ + piece.file;
    *good = false;
    SHADOWIB_TRY(place_.stat(name, &object));
    if (!object.found || object.bytes != piece.bytes) return {};
    if (!object.xxh3.empty()) {
      *good = object.xxh3 == piece.xxh3;
      return {};
    }
    const Status got = get_piece(place_, name, piece, [this](std::string_view part) {
      rate_.moved(part.size());
      return Status();
    });
    *good = got.ok();
    return got.code() == Code::kCorrupt ? Status() : got;
  }

  Status send(const FarPiece& piece) {
    Status broken;  // of the source: no other try mends it
    const Status status = try_again(options_, [&]() -> Status {
      if (!broken.ok()) return Status::of(Code::kAborted, 0, "%s", broken.text());
      PieceSource source;
      HexHash hash;
      std::uint64_t left = piece.piece.bytes;
      if (broken = piece.open(&source); !broken.ok()) return Status::of(Code::kAborted, 0, "%s", broken.text());
      SHADOWIB_TRY(place_.put(prefix_ + piece.piece.file, piece.piece.bytes, [&](char* to, std::size_t bytes) {
        if (broken = source(to, bytes); !broken.ok()) return Status::of(Code::kAborted, 0, "%s", broken.text());
        hash.add({to, bytes});
        left -= bytes;
        if (left == 0 && hash.hex() != piece.piece.xxh3) {
          broken = Status::of(Code::kCorrupt, 0, "%.100s is not the piece that the manifest records (XXH3 differs)",
                              piece.piece.file.c_str());
          return Status::of(Code::kAborted, 0, "%s", broken.text());
        }
        rate_.moved(bytes);
        return Status();
      }));
      bool good = false;
      SHADOWIB_TRY(is_there(piece.piece, &good));
      return good ? Status()
                  : Status::of(Code::kCorrupt, 0, "far: %.150s was sent, and is not there whole and right",
                               (prefix_ + piece.piece.file).c_str());
    });
    if (!broken.ok()) return broken;
    SHADOWIB_TRY(status);
    ++report_->sent;
    report_->bytes += piece.piece.bytes;
    return {};
  }

  FarPlace& place_;
  const std::string prefix_;
  const FlushOptions& options_;
  Rate rate_;
  FlushReport* report_;
};

}  // namespace

Status try_again(const FlushOptions& options, const std::function<Status()>& work) {
  int pause_ms = options.pause_ms;
  for (int left = options.tries - 1;; --left, pause_ms *= 2) {
    const Status status = work();
    if (status.ok() || left <= 0 || !may_pass(status)) return status;
    if (options.again) options.again(status);
    sleep_ns(static_cast<std::int64_t>(pause_ms) * 1000000);
  }
}

FarPiece far_text(const std::string& file, const std::string& text) {
  return {{file, text.size(), hex_hash(text)}, [text](PieceSource* source) {
            auto at = std::make_shared<std::size_t>(0);
            *source = [text, at](char* to, std::size_t bytes) {
              std::memcpy(to, text.data() + *at, bytes);
              *at += bytes;
              return Status();
            };
            return Status();
          }};
}

Status flush_pieces(FarPlace& place, const std::string& prefix, const std::vector<FarPiece>& pieces,
                    const FlushOptions& options, FlushReport* report) {
  for (const FarPiece& piece : pieces)
    if (!valid_object_name(prefix + piece.piece.file))
      return Status::of(Code::kUsage, EINVAL, "'%.200s' is no name of a far object",
                        (prefix + piece.piece.file).c_str());
  SHADOWIB_TRY(place.check());
  return Flush(place, prefix, options, report).all(pieces);
}

Status get_piece(FarPlace& place, const std::string& name, const Piece& piece, const PieceSink& sink) {
  HexHash hash;
  std::uint64_t bytes = 0;
  const auto differs = [&](const char* how) {
    return Status::of(Code::kCorrupt, 0, "far: %.200s is not the piece that the manifest records (%s)", name.c_str(),
                      how);
  };
  SHADOWIB_TRY(place.get(name, [&](std::string_view part) {
    bytes += part.size();
    if (bytes > piece.bytes) return differs("it is longer");
    hash.add(part);
    return sink(part);
  }));
  if (bytes != piece.bytes)
    return differs(("it has " + std::to_string(bytes) + " of " + std::to_string(piece.bytes) + " bytes").c_str());
  return hash.hex() == piece.xxh3 ? Status() : differs("XXH3 differs");
}

Status get_text(FarPlace& place, const std::string& name, std::string* text) {
  FarObject object;
  text->clear();
  SHADOWIB_TRY(place.stat(name, &object));
  if (!object.found) return Status::of(Code::kNotFound, ENOENT, "far: there is no %.200s", name.c_str());
  if (object.bytes > kMostText) return Status::of(Code::kCorrupt, 0, "far: %.200s is too large", name.c_str());
  SHADOWIB_TRY(place.get(name, [&](std::string_view part) {
    if (text->size() + part.size() > object.bytes)
      return Status::of(Code::kCorrupt, 0, "far: %.200s is longer than its size", name.c_str());
    *text += part;
    return Status();
  }));
  if (text->size() == object.bytes) return {};
  return Status::of(Code::kCorrupt, 0, "far: %.200s has %zu of %llu bytes", name.c_str(), text->size(),
                    static_cast<unsigned long long>(object.bytes));
}

std::string far_prefix(const std::string& job, const std::string& set_id) { return job + "/" + set_id + "/"; }

std::string encode_far_list(const std::vector<FarSet>& sets) {
  Json list = Json::array();
  for (const FarSet& set : sets) {
    Json line{{"number", set.number},
              {"set_id", set.set_id},
              {"created", set.created},
              {"bytes", set.bytes},
              {"members", set.members}};
    if (!set.far.empty()) line["far"] = set.far;
    list.push_back(std::move(line));
  }
  return Json({{"format", kListFormat}, {"sets", list}, {"xxh3", hex_hash(list.dump())}}).dump(2) + "\n";
}

Status decode_far_list(const std::string& json, const std::string& name, std::vector<FarSet>* sets) {
  sets->clear();
  try {
    Json parsed;
    if (std::string why; !Json::parse(json, &parsed, &why)) throw std::runtime_error(why);
    if (const int format = parsed.at("format").get<int>(); format != kListFormat)
      return Status::of(Code::kVersion, 0, "far: %.200s has format %d, this shadowib reads %d", name.c_str(), format,
                        kListFormat);
    if (hex_hash(parsed.at("sets").dump()) != parsed.at("xxh3").get<std::string>())
      throw std::runtime_error("its checksum does not agree");
    for (const Json& line : parsed.at("sets")) {
      FarSet& set = sets->emplace_back();
      line.at("number").get_to(set.number);
      line.at("set_id").get_to(set.set_id);
      line.at("created").get_to(set.created);
      line.at("bytes").get_to(set.bytes);
      line.at("members").get_to(set.members);
      set.far = line.value("far", "");
      if (!valid_set_id(set.set_id)) throw std::runtime_error("a set id is none");
    }
  } catch (const std::exception& error) {
    sets->clear();
    return Status::of(Code::kCorrupt, 0, "far: %.200s: %.100s", name.c_str(), error.what());
  }
  return {};
}

void add_far_set(const FarSet& set, std::vector<FarSet>* sets) {
  std::erase_if(*sets, [&set](const FarSet& other) { return other.set_id == set.set_id; });
  sets->push_back(set);
}

bool is_older_far_set(const FarSet& a, const FarSet& b) {
  return std::tie(a.created, a.number) < std::tie(b.created, b.number);
}

const FarSet* find_far_set(const std::vector<FarSet>& sets, std::uint32_t number) {
  const FarSet* found = nullptr;
  for (const FarSet& set : sets)
    if ((number == 0 || set.number == number) && (found == nullptr || !is_older_far_set(set, *found))) found = &set;
  return found;
}

}  // namespace shadowib
