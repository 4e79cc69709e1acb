#include "shadowib/exchange/tests/tls_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace shadowib {
namespace {

constexpr char kKind[] = "ec -pkeyopt ec_paramgen_curve:P-256";

}  // namespace

bool TlsFiles::available() { return std::system("openssl version >/dev/null 2>&1") == 0; }

TlsFiles::TlsFiles() {
  char name[] = "/tmp/shadowib-tls-XXXXXX";
  if (::mkdtemp(name) != nullptr) directory_ = name;
  make_authority("authority");
  make("server", "DNS:localhost,IP:127.0.0.1", 2);
  make("client", "DNS:client", 2);
}

TlsFiles::~TlsFiles() {
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
}

void TlsFiles::run(const std::string& arguments) {
  const std::string command = "cd " + directory_ + " && openssl " + arguments + " >>log 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

void TlsFiles::make_authority(const std::string& name) {
  run("req -x509 -nodes -days 2 -newkey " + std::string(kKind) + " -subj '/CN=" + name + "' -keyout " + name +
      ".key -out " + name + ".pem");
}

// In two steps: openssl makes none in one that has run out already.
void TlsFiles::make(const std::string& name, const std::string& names, int days, const std::string& kind,
                    const std::string& extensions) {
  run("req -nodes -newkey " + (kind.empty() ? kKind : kind) + " -subj '/CN=" + name +
      "' -addext 'subjectAltName=" + names + "' " + extensions + " -keyout " + name + ".key -out " + name + ".csr");
  run("x509 -req -copy_extensions copy -CA authority.pem -CAkey authority.key -days " + std::to_string(days) +
      " -in " + name + ".csr -out " + name + ".pem");
}

std::vector<std::string> TlsFiles::options(const std::string& server, bool asks) const {
  return {"--tls-cert-file",    certificate(server),      "--tls-key-file",     key(server),
          "--tls-ca-cert-file", certificate("authority"), "--tls-auth-clients", asks ? "yes" : "no"};
}

std::string TlsFiles::query(bool with_client) const {
  return "?ca=" + certificate("authority") +
         (with_client ? "&cert=" + certificate("client") + "&key=" + key("client") : "");
}

}  // namespace shadowib
