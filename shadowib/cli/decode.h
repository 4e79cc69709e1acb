// Pieces of sets with parity: which are left on which hosts, and making those that are lost.
#pragma once

#include <string>
#include <vector>

#include "hooks/store/keeper_info.h"
#include "hooks/store/parity_pieces.h"
#include "shadowib/cli/keepers.h"

namespace shadowib::cli {

// Asks these keepers at the same time which pieces they have, whole and right. A keeper that fails has none.
FileHolders ask_holders(const std::string& directory, const SetManifest& manifest,
                        const std::vector<KeeperInfo>& keepers);

// Brings images onto this host: from a host that has one, else made from what is left on others. Looks whether all
// can be had before it makes any, and waits a while for keepers that just start. A host that is lost meanwhile costs
// another try. kNotFound names the image and what is missing.
Status decode_images(const std::string& directory, const SetManifest& manifest, const std::vector<SetMember>& wanted);

// A host for each piece that is somewhere.
PieceHosts choose_hosts(const FileHolders& holders);
// kNotFound: the piece is on no host, and too little is left to make it.
Status check_available(const ParityGroup& group, const std::string& file, const FileHolders& holders);
// A host that has failed has nothing.
void forget_host(const std::string& host, FileHolders* holders);

}  // namespace shadowib::cli
