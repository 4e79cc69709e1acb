// Tables for people and for programs: `shadowib inspect`.
#include <fcntl.h>
#include <sys/eventfd.h>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/file_lock.h"
#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/json_value.h"

namespace shadowib {
namespace descriptors {
namespace {

std::string flag_names(int flags) {
  static const char* const kModes[] = {"O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"};
  std::string text = kModes[flags & O_ACCMODE];
  struct {
    int bit;
    const char* name;
  } constexpr kFlags[] = {{O_APPEND, "O_APPEND"}, {O_NONBLOCK, "O_NONBLOCK"}, {O_DIRECT, "O_DIRECT"},
                          {O_DSYNC, "O_DSYNC"},   {O_ASYNC, "O_ASYNC"},       {O_DIRECTORY, "O_DIRECTORY"},
                          {O_PATH, "O_PATH"}};
  for (const auto& flag : kFlags)
    if ((flags & flag.bit) != 0) text += std::string("|") + flag.name;
  return text;
}

std::size_t bytes_of(const std::vector<Message>& queue) {
  std::size_t bytes = 0;
  for (const Message& m : queue) bytes += m.data.size();
  return bytes;
}
std::size_t queued_of(const Object& o) { return bytes_of(o.queue); }

bool has_offset(Kind kind) {
  return kind == Kind::kFile || kind == Kind::kDirectory || kind == Kind::kMemory || kind == Kind::kThreadFile;
}

std::string details(const Object& o) {
  std::string text;
  if (has_offset(o.kind)) text += "  offset " + std::to_string(o.offset);
  if (o.kind == Kind::kFile || o.kind == Kind::kMemory) text += "  size " + std::to_string(o.size);
  if (o.kind == Kind::kEventfd)
    text += "  count " + std::to_string(o.count) + ((o.kind_flags & EFD_SEMAPHORE) != 0 ? "  semaphore" : "");
  if (o.kind == Kind::kTimerfd)
    text += "  value " + std::to_string(o.value_ns) + " ns  interval " + std::to_string(o.interval_ns) + " ns";
  for (const EpollEntry& e : o.entries) text += "  watches " + std::to_string(e.fd);
  if (!o.input.empty()) text += "  to be read at the slave " + std::to_string(bytes_of(o.input)) + " bytes";
  if (!o.queue.empty()) text += "  queued " + std::to_string(queued_of(o)) + " bytes";
  for (const FileLock& lock : o.locks) text += "  " + describe_lock(lock);
  if (o.inherited != 0) text += "  inherited from outside the job";
  if (o.counterpart_gone) text += "  other end closed";
  if (o.stdio >= 0) text += "  standard stream " + std::to_string(o.stdio);
  return text;
}

Json to_json(const Descriptor& d, const Object& o) {
  Json json = {{"fd", d.fd},
               {"object", d.object},
               {"type", kind_name(o.kind)},
               {"name", describe_object(o)},
               {"flags", flag_names(o.flags)},
               {"close_on_exec", d.close_on_exec != 0},
               {"queued_bytes", queued_of(o)}};
  if (has_offset(o.kind)) json["offset"] = o.offset;
  if (o.kind == Kind::kFile || o.kind == Kind::kMemory) json["size"] = o.size;
  for (const FileLock& lock : o.locks) json["locks"].push_back(describe_lock(lock));
  if (o.kind == Kind::kEventfd) json["count"] = o.count;
  if (!o.entries.empty()) {
    json["watches"] = Json::array();
    for (const EpollEntry& e : o.entries) json["watches"].push_back(e.fd);
  }
  return json;
}

}  // namespace
}  // namespace descriptors

Status print_descriptors(const std::string& encoded, bool json, std::string* text) {
  using namespace descriptors;
  Table table;
  SHADOWIB_TRY(decode_table(encoded, &table));
  text->clear();
  Json list = Json::array();
  for (const Descriptor& d : table.descriptors) {
    const Object& o = table.objects[d.object];
    if (json)
      list.push_back(to_json(d, o));
    else
      *text += std::to_string(d.fd) + "  " + describe_object(o) + details(o) + "  " + flag_names(o.flags) +
               (d.close_on_exec ? "  close-on-exec" : "") + "\n";
  }
  for (const Child& c : table.children) {
    const std::string how = c.ended == 0 ? "lives"
                            : (c.wait_status & 0x7f)
                                ? "has ended with signal " + std::to_string(c.wait_status & 0x7f)
                                : "has ended with exit status " + std::to_string(c.wait_status >> 8);
    if (!json) *text += "child   pid " + std::to_string(c.pid) + " (" + c.name + ")  " + how + "\n";
  }
  for (const Segment& s : table.segments)
    if (!json) *text += "shared  " + describe_segment(s) + "  size " + std::to_string(s.bytes) + "\n";
  for (const SharedFile& f : table.shared_files)
    if (!json)
      *text += "open    object " + std::to_string(f.object) + " of member " + std::to_string(f.member) +
               "  description " + std::to_string(f.description) + "\n";
  for (const SemaphoreSet& s : table.semaphores)
    if (!json)
      *text += "shared  " + describe_semaphores(s) + "  " + std::to_string(s.semaphores.size()) + " values\n";
  for (const MessageQueue& q : table.queues)
    if (!json) *text += "shared  " + describe_queue(q) + "  " + std::to_string(q.messages.size()) + " messages\n";
  // Paths are bytes, not always UTF-8.
  if (json) *text = list.dump(2);
  return {};
}

}  // namespace shadowib
