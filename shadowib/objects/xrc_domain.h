// Shadow XRC domains.
#pragma once

#include <infiniband/verbs.h>

#include <compare>
#include <cstdint>

#include "shadowib/objects/context.h"

namespace shadowib {

// Which file a domain was opened by, whatever becomes of its name and of the descriptor. An inode's number may be
// given again; then it was born later.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0, born_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

// A handle of a domain. Those of one device that were opened by one file are of one domain.
struct ShadowXrcd {
  ibv_xrcd xrcd;  // first: the program's
  ListHook hook;
  ibv_xrcd* real = nullptr;
  bool has_file = false;
  FileIdentity file;
  std::uint32_t users = 0;  // queue pairs and shared receive queues made by this handle
  static ShadowXrcd* of(ibv_xrcd* xrcd) { return reinterpret_cast<ShadowXrcd*>(xrcd); }

  bool is_one_with(const ShadowXrcd& other) const {
    return this == &other ||
           (has_file && other.has_file && file == other.file &&
            ShadowContext::of(xrcd.context)->device == ShadowContext::of(other.xrcd.context)->device);
  }
};

}  // namespace shadowib
