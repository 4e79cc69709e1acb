// Changes a checkpoint set in every way that matters, one at a time, and checks that verification refuses each.
//
// Usage: ci_corrupt SET --scratch DIR [--seed N] [--payload N] [--places N] [--every N] [--jobs N]
//   every byte (or one in --every) of the image header, of all records that are no pages, of the headers of pages,
//   of manifest.json and manifest.xxh3 is changed; --payload random bytes of pages; images and manifest are truncated
//   at every record boundary and one byte before and behind, and at --places random places.
// Works on copies below DIR. Prints totals as JSON; exit code 1 if a change was accepted, or refused without a
// message or with another code than kCorrupt.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/image_format.h"
#include "hooks/imager/image_reader.h"

namespace fs = std::filesystem;
using shadowib::Code;

namespace {

struct Options {
  std::string set, scratch;
  std::uint64_t seed = 1, payload = 2000, places = 500, every = 1;
  int jobs = 2;
};

enum class Kind { kTable, kPayload, kTruncate };
constexpr const char* kKindNames[] = {"table bytes", "payload bytes", "truncations"};

struct Change {
  Kind kind;
  std::size_t file;
  std::uint64_t offset;  // of the byte changed, or the new length
  std::uint8_t flip;
};

struct File {
  std::string name, content;
  bool image;
};

[[noreturn]] void usage() {
  std::fprintf(stderr,
               "usage: ci_corrupt SET --scratch DIR [--seed N] [--payload N] [--places N] [--every N] [--jobs N]\n");
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options o;
  std::map<std::string, std::string> given;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word.rfind("--", 0) != 0)
      o.set = word;
    else if (i + 1 < argc)
      given[word] = argv[++i];
    else
      usage();
  }
  for (const auto& [name, value] : given) {
    if (name == "--scratch")
      o.scratch = value;
    else if (name == "--seed")
      o.seed = std::stoull(value, nullptr, 16);
    else if (name == "--payload")
      o.payload = std::stoull(value);
    else if (name == "--places")
      o.places = std::stoull(value);
    else if (name == "--every")
      o.every = std::max<std::uint64_t>(1, std::stoull(value));
    else if (name == "--jobs")
      o.jobs = std::max(1, std::stoi(value));
    else
      usage();
  }
  if (o.set.empty() || o.scratch.empty()) usage();
  return o;
}

std::vector<File> load(const std::string& set) {
  std::vector<File> files;
  for (const auto& entry : fs::directory_iterator(set)) {
    std::ifstream in(entry.path(), std::ios::binary);
    File file{entry.path().filename(), {std::istreambuf_iterator<char>(in), {}}, false};
    file.image = file.name.rfind("manifest.", 0) != 0;
    files.push_back(std::move(file));
  }
  return files;
}

class Plan {
 public:
  Plan(const Options& options, const std::vector<File>& files) : o_(options), files_(files), random_(options.seed) {
    for (std::size_t i = 0; i < files.size(); ++i) files[i].image ? plan_image(i) : plan_manifest(i);
    plan_payload();
    for (std::uint64_t i = 0; i < o_.places; ++i) {
      std::size_t file = random_() % files.size();
      if (!files[file].content.empty()) truncate(file, random_() % files[file].content.size());
    }
  }
  std::vector<Change> take() { return std::move(changes_); }

 private:
  void change_byte(Kind kind, std::size_t file, std::uint64_t at) {
    changes_.push_back({kind, file, at, static_cast<std::uint8_t>(1 + random_() % 255)});
  }
  void change_table(std::size_t file, std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t at = begin; at < end; ++at)
      if (o_.every == 1 || random_() % o_.every == 0) change_byte(Kind::kTable, file, at);
  }
  void truncate(std::size_t file, std::uint64_t length) {
    if (length < files_[file].content.size()) changes_.push_back({Kind::kTruncate, file, length, 0});
  }
  void truncate_around(std::size_t file, std::uint64_t boundary) {
    for (std::uint64_t length : {boundary - 1, boundary, boundary + 1}) truncate(file, length);
  }
  void plan_manifest(std::size_t file) {
    change_table(file, 0, files_[file].content.size());
    for (std::uint64_t length = 0; length < files_[file].content.size(); length += 64)
      truncate_around(file, length + 1);
  }

  void plan_image(std::size_t file) {
    using namespace shadowib;
    const std::string& bytes = files_[file].content;
    change_table(file, 0, kPage);
    std::uint64_t at = kPage;
    truncate_around(file, 1);
    while (at + sizeof(RecordHeader) <= bytes.size()) {
      truncate_around(file, at);
      RecordHeader header;
      __builtin_memcpy(&header, bytes.data() + at, sizeof(header));
      std::uint64_t end = at + record_bytes(header.length);
      bool pages = static_cast<RecordType>(header.type) == RecordType::kPages;
      std::uint64_t table_end = pages ? at + kPage : std::min(end, at + sizeof(header) + header.length);
      if (pages) {
        PagesHeader inner;
        __builtin_memcpy(&inner, bytes.data() + at + sizeof(header), sizeof(inner));
        table_end = at + sizeof(header) + sizeof(inner) + inner.run_count * sizeof(PageRun);
        payload_.push_back({file, at + kPage, end});
      }
      change_table(file, at, table_end);
      // What fills up the page is no table: a few bytes of it.
      std::uint64_t fill_end = pages ? at + kPage : end;
      for (int i = 0; i < 8 && table_end < fill_end; ++i)
        change_byte(Kind::kTable, file, table_end + random_() % (fill_end - table_end));
      at = end;
    }
  }

  void plan_payload() {
    std::uint64_t total = 0;
    for (const Range& range : payload_) total += range.end - range.begin;
    for (std::uint64_t i = 0; i < o_.payload && total > 0; ++i) {
      std::uint64_t place = random_() % total;
      for (const Range& range : payload_) {
        if (place < range.end - range.begin) {
          change_byte(Kind::kPayload, range.file, range.begin + place);
          break;
        }
        place -= range.end - range.begin;
      }
    }
  }

  struct Range {
    std::size_t file;
    std::uint64_t begin, end;
  };
  const Options& o_;
  const std::vector<File>& files_;
  std::mt19937_64 random_;
  std::vector<Range> payload_;
  std::vector<Change> changes_;
};

bool write_at(int fd, const char* data, std::uint64_t bytes, std::uint64_t at) {
  while (bytes > 0) {
    ssize_t n = ::pwrite(fd, data, bytes, static_cast<off_t>(at));
    if (n <= 0) return false;
    data += n, bytes -= static_cast<std::uint64_t>(n), at += static_cast<std::uint64_t>(n);
  }
  return true;
}

// Refused as it should be. `why` says what is wrong with the refusal.
bool refused(const shadowib::Status& status, std::string* why) {
  if (status.ok())
    *why = "accepted";
  else if (status.code() != Code::kCorrupt)
    *why = "code " + std::to_string(static_cast<int>(status.code())) + ": " + status.text();
  else if (status.text()[0] == '\0')
    *why = "no message";
  return why->empty();
}

class Worker {
 public:
  Worker(const Options& options, const std::vector<File>& files, int number)
      : files_(files),
        copy_(options.scratch + "/" + std::to_string(number) + "/" + fs::path(options.set).filename().string()) {
    fs::remove_all(copy_);
    fs::create_directories(copy_);
    fs::copy(options.set, copy_);
    for (const File& file : files) fds_.push_back(::open((copy_ + "/" + file.name).c_str(), O_RDWR | O_CLOEXEC));
  }
  ~Worker() {
    for (int fd : fds_) ::close(fd);
    fs::remove_all(fs::path(copy_).parent_path());
  }

  bool check(const Change& change) {
    const std::string& content = files_[change.file].content;
    int fd = fds_[change.file];
    if (change.kind == Kind::kTruncate) {
      if (::ftruncate(fd, static_cast<off_t>(change.offset)) != 0) std::abort();
    } else {
      char byte = static_cast<char>(content[change.offset] ^ change.flip);
      if (!write_at(fd, &byte, 1, change.offset)) std::abort();
    }
    std::string why;
    shadowib::SetManifest manifest;
    bool good = refused(shadowib::verify_set(copy_, &manifest, nullptr), &why);
    // The manifest knows each image's length and sum; the image has to find out by itself as well.
    if (good && change.kind == Kind::kTruncate && files_[change.file].image) {
      shadowib::ImageInfo info;
      good = refused(shadowib::read_image(copy_ + "/" + files_[change.file].name, &info), &why);
    }
    if (!good)
      std::fprintf(stderr, "ci_corrupt: %s of %s at %llu (xor %u): %s\n", kKindNames[static_cast<int>(change.kind)],
                   files_[change.file].name.c_str(), static_cast<unsigned long long>(change.offset), change.flip,
                   why.c_str());
    std::uint64_t bytes = change.kind == Kind::kTruncate ? content.size() - change.offset : 1;
    if (!write_at(fd, content.data() + change.offset, bytes, change.offset)) std::abort();
    return good;
  }

  bool intact() {
    shadowib::SetManifest manifest;
    shadowib::Status status = shadowib::verify_set(copy_, &manifest, nullptr);
    if (!status.ok()) std::fprintf(stderr, "ci_corrupt: the unchanged set is refused: %s\n", status.text());
    return status.ok();
  }

 private:
  const std::vector<File>& files_;
  std::string copy_;
  std::vector<int> fds_;
};

// Before the first and after the last change the copy has to be good: the refusals are of the changes.
int work(const Options& options, const std::vector<File>& files, const std::vector<Change>& changes, int number) {
  Worker worker(options, files, number);
  if (!worker.intact()) return 1;
  int wrong = 0;
  for (std::size_t i = static_cast<std::size_t>(number); i < changes.size() && wrong < 20;
       i += static_cast<std::size_t>(options.jobs))
    wrong += !worker.check(changes[i]);
  return wrong != 0 || !worker.intact();
}

}  // namespace

int main(int argc, char** argv) {
  Options options = parse(argc, argv);
  std::vector<File> files = load(options.set);
  std::vector<Change> changes = Plan(options, files).take();
  std::vector<pid_t> children;
  for (int i = 0; i < options.jobs; ++i) {
    pid_t child = ::fork();
    if (child == 0) std::_Exit(work(options, files, changes, i));
    children.push_back(child);
  }
  bool good = !changes.empty();
  for (pid_t child : children) {
    int status = 0;
    good = ::waitpid(child, &status, 0) == child && status == 0 && good;
  }
  std::uint64_t counts[3] = {};
  for (const Change& change : changes) ++counts[static_cast<int>(change.kind)];
  std::printf("{\"changes\": %zu", changes.size());
  for (int i = 0; i < 3; ++i)
    std::printf(", \"%s\": %llu", kKindNames[i], static_cast<unsigned long long>(counts[i]));
  std::printf(", \"all refused\": %s}\n", good ? "true" : "false");
  return good ? 0 : 1;
}
