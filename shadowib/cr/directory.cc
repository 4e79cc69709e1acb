#include "shadowib/cr/directory.h"

#include <cstdio>
#include <cstring>
#include <string_view>

#include "hooks/agent.h"

namespace shadowib {
namespace {

template <typename T>
void put_array(std::string* out, const std::vector<T>& items) {
  std::uint64_t n = items.size();
  out->append(reinterpret_cast<const char*>(&n), sizeof(n));
  out->append(reinterpret_cast<const char*>(items.data()), n * sizeof(T));
}

template <typename T>
bool take_array(std::string_view* in, std::vector<T>* items) {
  std::uint64_t n = 0;
  if (in->size() < sizeof(n)) return false;
  std::memcpy(&n, in->data(), sizeof(n));
  in->remove_prefix(sizeof(n));
  if (n > in->size() / sizeof(T)) return false;
  items->resize(n);
  if (n != 0) std::memcpy(static_cast<void*>(items->data()), in->data(), n * sizeof(T));
  in->remove_prefix(n * sizeof(T));
  return true;
}

}  // namespace

std::string job_key(const std::string& rest) { return std::string(job_info().epoch) + "/" + rest; }

std::string hex(const ibv_gid& gid) {
  char text[33];
  for (int i = 0; i < 16; ++i) std::snprintf(text + 2 * i, 3, "%02x", gid.raw[i]);
  return text;
}

std::string address_key(VirtualLid lid) { return job_key("at/lid/" + std::to_string(lid.value)); }
std::string address_key(const ibv_gid& gid) { return job_key("at/gid/" + hex(gid)); }

std::string source_key(const SourceAddress& from) {
  return job_key("source/" + (from.lid != 0 ? std::to_string(from.lid) : hex(from.gid)) + "/" +
                 std::to_string(from.qp_num));
}

std::string late_key(const char* kind, std::uint32_t member, std::uint32_t pd, std::uint32_t id) {
  return job_key("late/" + std::to_string(member) + "/" + kind + "/" + std::to_string(pd) + "/" + std::to_string(id));
}

std::string late_number_key(const char* kind, std::uint32_t member, std::uint32_t number) {
  return job_key("late/" + std::to_string(member) + "/" + kind + "/" + std::to_string(number));
}

std::string encode_directory(const Directory& directory) {
  std::string out;
  put_array(&out, directory.ports);
  put_array(&out, directory.qps);
  put_array(&out, directory.srqs);
  put_array(&out, directory.keys);
  put_array(&out, directory.windows);
  return out;
}

bool decode_directory(const std::string& text, Directory* directory) {
  std::string_view in(text);
  return take_array(&in, &directory->ports) && take_array(&in, &directory->qps) &&
         take_array(&in, &directory->srqs) && take_array(&in, &directory->keys) &&
         take_array(&in, &directory->windows) && in.empty();
}

}  // namespace shadowib
