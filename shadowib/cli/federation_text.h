// The clusters of a federation as text and JSON: `status`, `line`.
#pragma once

#include <string>

#include "hooks/command/federation_view.h"
#include "shadowib/base/json_value.h"

namespace shadowib::cli {

// D by name: "A:3 C:1"; "-" if it is 0 of all.
std::string depends_text(const FederationView& federation, const federation::PerCluster& depends);

Json clusters_json(const FederationView& federation);
// The lines of recoveries in this epoch, by number: number, to (CLCs by cluster), generation, reached.
Json recoveries_json(const FederationView& federation);
void print_clusters(const FederationView& federation);  // nothing if there are none

}  // namespace shadowib::cli
