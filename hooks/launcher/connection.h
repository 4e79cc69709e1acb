// The descriptor by which the library is connected to the launcher.
#pragma once

#include <string>
#include <vector>

namespace shadowib {

// The address in the last part of "577765376.0;tcp4://127.0.0.1:36397", as a sockaddr; empty: none.
std::string address_in_uri(const std::string& uri);

// Tells the imager of each descriptor that is connected to an address of PMIX_SERVER_URI* (imager/descriptors.h).
// Inside.
void note_launcher_connection();

}  // namespace shadowib
