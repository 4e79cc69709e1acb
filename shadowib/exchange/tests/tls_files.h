// Certificates for one test program, by openssl(1), in a directory that goes with this object: of an authority, of a
// server that is localhost and 127.0.0.1, and of a client.
#pragma once

#include <string>
#include <vector>

namespace shadowib {

class TlsFiles {
 public:
  // True if the program is there.
  static bool available();

  // Fails the test if it cannot make them.
  TlsFiles();
  ~TlsFiles();
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

  // DIRECTORY/name.pem and DIRECTORY/name.key: authority, server, client, what is made below.
  std::string certificate(const std::string& name) const { return directory_ + "/" + name + ".pem"; }
  std::string key(const std::string& name) const { return directory_ + "/" + name + ".key"; }
  // Another one, signed by the authority. `names`: as openssl has subjectAltName; `kind`: of openssl's -newkey;
  // `extensions`: further options that make some.
  void make(const std::string& name, const std::string& names, int days, const std::string& kind = "",
            const std::string& extensions = "");
  // Another authority.
  void make_authority(const std::string& name);

  // Options of a redis-server with that certificate, which also asks for a client's, or takes any client.
  std::vector<std::string> options(const std::string& server, bool asks) const;
  // The part behind a rediss:// URI.
  std::string query(bool with_client) const;

 private:
  void run(const std::string& arguments);
  std::string directory_;
};

}  // namespace shadowib
