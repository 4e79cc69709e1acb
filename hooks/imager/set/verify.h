// verify_set with its two neighbours exchangeable, so that its own rules are tested without real images.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/image_reader.h"

namespace shadowib {

struct SetVerifier {
  std::function<Status(const std::string& path, ImageInfo* info)> read_image;
  std::function<Status(const std::map<std::uint32_t, std::string>& tables)> match_descriptors;
};

Status verify_set_with(const SetVerifier& verifier, const std::string& set_path, SetManifest* manifest,
                       void (*progress)(std::uint64_t, std::uint64_t), const std::set<std::uint32_t>& members = {});

}  // namespace shadowib
