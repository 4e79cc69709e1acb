// Keepers as commands use them: starting this host's, looking for images on other hosts, removing sets everywhere.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/store/mirror.h"
#include "hooks/store/pieces.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

// Starts the job's keeper on this host, which listens on `network`, as a process of its own, unless there is one, and
// waits until it answers.
Status ensure_keeper(const std::string& directory, const std::string& job, const std::string& network = "");

// Brings the images of `members` (none: all) onto this host that are not here. `deep`: reads those that are here,
// too, and replaces damaged ones. Asks the keepers of all hosts, and waits a while for those that just start.
// kNotFound names the image and what each host has said.
Status gather_images(const std::string& directory, const SetManifest& manifest,
                     const std::set<std::uint32_t>& members, bool deep);

// The hosts whose keepers have a piece whole and right, by piece: images, and parities.
using FileHolders = std::map<std::string, std::set<std::string>>;
FileHolders find_holders(const std::string& directory, const SetManifest& manifest);

// The keeper's failure domain of each host with a keeper, and of this one.
Domains find_domains(const std::string& directory, const std::string& job);

// Pieces as keepers and messages have them.
NearSetId near_id(const SetManifest& manifest);
Piece piece_of(const SetMember& member);

// "2 images of demo.0003", for progress, and the bytes of all.
std::string images_text(const SetManifest& manifest, const std::vector<SetMember>& members);
std::uint64_t bytes_of(const std::vector<SetMember>& members);

}  // namespace shadowib::cli
