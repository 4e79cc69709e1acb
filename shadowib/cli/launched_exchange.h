// `pmix:`, below a launcher that speaks PMIx: the exchange that all ranks of a launch share. Its server
// (exchange/exchange_server.h) is started by rank 0's command, and ends with the launcher.
//
// The launcher tells who belongs together, by PMIX_NAMESPACE and PMIX_RANK. Where the server is stands in the job's
// directory, which the hosts share for its locks and images anyway. PMIx itself could tell it, too; but of Open MPI's
// mpirun 4.1.4 one launch in four on two hosts, and one in fifteen on one, hangs or dies after a rank's command has
// been a client of its PMIx server before the program was (docs/internals/decisions/pmix-carries-nothing.md).
#pragma once

#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib::cli {

// Where a launch's server is: "1 PORT PASSWORD ADDRESS...", in a file of the job's (0600).
struct ServerPlace {
  int port = 0;
  std::string password;
  std::vector<std::string> addresses;  // numeric

  std::string text() const;
  // False: it is nothing of the kind.
  static bool parse(const std::string& text, ServerPlace* place);
};

// A launcher that speaks PMIx has started this command.
bool is_launched();

// pmix: or pmix:PREFIX, what is to be found yet.
bool is_launched_exchange(const std::string& uri);

// Turns it into pmix://:PASSWORD@ADDRESS:PORT/PREFIX. Rank 0's first command starts the server; others wait for it,
// and look for it in `directory`, the job's ("": there is none). kUsage: no launcher has started this command, or
// there is no job, or the URI is wrong; kTimeout: rank 0 has started none; kRefused: the launcher is not to be found;
// kIo.
Status find_launched_exchange(const std::string& directory, std::string* uri);

// The URI that a job was started with is worth nothing under another launcher: a settled pmix://... becomes
// pmix:PREFIX again.
std::string unsettled_exchange(const std::string& uri);

}  // namespace shadowib::cli
