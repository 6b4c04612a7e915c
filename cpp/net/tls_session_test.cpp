// Tests TLS on the data plane: the same rows as without TLS, nothing readable on the network, and no access for
// strangers.
#include "net/tls_session.h"

#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "net/frame_io.h"
#include "net/handshake.h"
#include "testing/check.h"
#include "testing/cluster.h"
#include "testing/proxy.h"

namespace springtide::tls_session_test {

namespace {

// Certificates that are valid for a hundred years: of a job "mine", of another authority with a job of the same name,
// and two of the first authority that must be refused (one expired, one of another job). The keys protect nothing.
const char* const kMineCa = R"(-----BEGIN CERTIFICATE-----
MIIBxjCCAWygAwIBAgIUPKeZM8CAMlqgDmc1u+NFAI+iMDgwCgYIKoZIzj0EAwIw
LjEYMBYGA1UECgwPc3ByaW5ndGlkZSBtaW5lMRIwEAYDVQQDDAlhdXRob3JpdHkw
IBcNMjYxMDMxMjMwMDAwWhgPMjEyNjEwMDgwMDAwMDBaMC4xGDAWBgNVBAoMD3Nw
cmluZ3RpZGUgbWluZTESMBAGA1UEAwwJYXV0aG9yaXR5MFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEF90FmpccUFnCW1SX9kDTCvkZYaoUNjXeFRh/W8kWeR5Mp+nm
jh/N0/jdN40p75RABAgbo/tMnuCOOUwRYZuwyaNmMGQwHQYDVR0OBBYEFC60usdb
iKfc46kaEGw4OuGA7SpgMBIGA1UdEwEB/wQIMAYBAf8CAQAwDgYDVR0PAQH/BAQD
AgEGMB8GA1UdIwQYMBaAFC60usdbiKfc46kaEGw4OuGA7SpgMAoGCCqGSM49BAMC
A0gAMEUCIF35j/r/B16zG+dsYW2tFSLaFuX926iFyknuEBPzqBM1AiEAzevOlk2K
BgxafNeAFXjOqFQTOgY02JwDjldPrvOWCQs=
-----END CERTIFICATE-----
)";
const char* const kServerCrt = R"(-----BEGIN CERTIFICATE-----
MIICATCCAaegAwIBAgIUCxkcacb/+p1a8zXjazp+pFGJqOowCgYIKoZIzj0EAwIw
LjEYMBYGA1UECgwPc3ByaW5ndGlkZSBtaW5lMRIwEAYDVQQDDAlhdXRob3JpdHkw
IBcNMjYxMDMxMjMwMDAwWhgPMjEyNjEwMDgwMDAwMDBaMCsxGDAWBgNVBAoMD3Nw
cmluZ3RpZGUgbWluZTEPMA0GA1UEAwwGc2VydmVyMFkwEwYHKoZIzj0CAQYIKoZI
zj0DAQcDQgAEUlW/p/+ZA6/FjjTzer+frUzSYANMSfM3+m7S1BPy1NXeTuuf713c
OoqIVd7R+YZgNfJt9VPi1if6CsYZXUF8XaOBozCBoDAdBgNVHQ4EFgQUvFI87fh7
iwfmQWimWwV/sS3Vo8cwDAYDVR0TAQH/BAIwADAdBgNVHSUEFjAUBggrBgEFBQcD
AQYIKwYBBQUHAwIwIQYDVR0RBBowGIYWc3ByaW5ndGlkZTptaW5lL3NlcnZlcjAO
BgNVHQ8BAf8EBAMCB4AwHwYDVR0jBBgwFoAULrS6x1uIp9zjqRoQbDg64YDtKmAw
CgYIKoZIzj0EAwIDSAAwRQIgTq6gOF7vyqjlC8JZUMGq/o5UjvwatCA+AE4NhV52
K0ICIQCJnJzcrXDKjPce7k8QnSS7j8u/BtF+Igy/ha7yvnHCfw==
-----END CERTIFICATE-----
)";
const char* const kServerKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgf+Ppe9YEuxmy3JZB
YETflRbR8aMoTjBRdrg0kfJ8McahRANCAARSVb+n/5kDr8WONPN6v5+tTNJgA0xJ
8zf6btLUE/LU1d5O65/vXdw6iohV3tH5hmA18m31U+LWJ/oKxhldQXxd
-----END PRIVATE KEY-----
)";
const char* const kWorkerCrt = R"(-----BEGIN CERTIFICATE-----
MIICATCCAaegAwIBAgIULXNk/aLCoAwmFVGZEOmngF0F+6QwCgYIKoZIzj0EAwIw
LjEYMBYGA1UECgwPc3ByaW5ndGlkZSBtaW5lMRIwEAYDVQQDDAlhdXRob3JpdHkw
IBcNMjYxMDMxMjMwMDAwWhgPMjEyNjEwMDgwMDAwMDBaMCsxGDAWBgNVBAoMD3Nw
cmluZ3RpZGUgbWluZTEPMA0GA1UEAwwGd29ya2VyMFkwEwYHKoZIzj0CAQYIKoZI
zj0DAQcDQgAEUw6Y1IZC4M+X5qUL9SnbAagQo8XPOtOauldtrkdk91pLCSiSLTN7
9uVcOaASiAscpKoUmUMCNkJpKX7SFTez/KOBozCBoDAdBgNVHQ4EFgQUDnGUiJz1
3zERHOYwspBBbc+4cxswDAYDVR0TAQH/BAIwADAdBgNVHSUEFjAUBggrBgEFBQcD
AQYIKwYBBQUHAwIwIQYDVR0RBBowGIYWc3ByaW5ndGlkZTptaW5lL3dvcmtlcjAO
BgNVHQ8BAf8EBAMCB4AwHwYDVR0jBBgwFoAULrS6x1uIp9zjqRoQbDg64YDtKmAw
CgYIKoZIzj0EAwIDSAAwRQIgU7zx/P7fW9bL+S9HKUJ3jMg1QDFItQqKp3viNiHN
6E0CIQCvuW8jM7ZmcrLIt9m8EwpEPhprBjKRHSEHHfDxuZrEOw==
-----END CERTIFICATE-----
)";
const char* const kWorkerKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgRavYlTa/lQ499Ywd
X5BzjtwFKhBZ9U0uhq79KrBTH/ehRANCAARTDpjUhkLgz5fmpQv1KdsBqBCjxc86
05q6V22uR2T3WksJKJItM3v25Vw5oBKICxykqhSZQwI2QmkpftIVN7P8
-----END PRIVATE KEY-----
)";
const char* const kOtherCa = R"(-----BEGIN CERTIFICATE-----
MIIBxjCCAWygAwIBAgIUIFTU7gZJ0nGEtd/4+RLtv2+RDc0wCgYIKoZIzj0EAwIw
LjEYMBYGA1UECgwPc3ByaW5ndGlkZSBtaW5lMRIwEAYDVQQDDAlhdXRob3JpdHkw
IBcNMjYxMDMxMjMwMDAwWhgPMjEyNjEwMDgwMDAwMDBaMC4xGDAWBgNVBAoMD3Nw
cmluZ3RpZGUgbWluZTESMBAGA1UEAwwJYXV0aG9yaXR5MFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEjYzdvvG8WoxFPZ3nLVxBqz+ktYZxLRWkn9wiZxvKsvJcKq+o
YNS4MAcrU05feMXMEufg7QgrOEYZmRWaLZEdc6NmMGQwHQYDVR0OBBYEFEhuedXP
HpEUviaKwEz5PCemJA9XMBIGA1UdEwEB/wQIMAYBAf8CAQAwDgYDVR0PAQH/BAQD
AgEGMB8GA1UdIwQYMBaAFEhuedXPHpEUviaKwEz5PCemJA9XMAoGCCqGSM49BAMC
A0gAMEUCIBlQRBIQaqoatgQrzAhjUr84joY6eOyWv3/7Hqx7nhq9AiEAnituWh4a
vdDfJTxhn9ulhkcZ23PC71dPYZDYoAgCC5w=
-----END CERTIFICATE-----
)";
const char* const kOtherCrt = R"(-----BEGIN CERTIFICATE-----
MIICAjCCAaegAwIBAgIUPUnDM8LyogSAoB8HthECfrja6igwCgYIKoZIzj0EAwIw
LjEYMBYGA1UECgwPc3ByaW5ndGlkZSBtaW5lMRIwEAYDVQQDDAlhdXRob3JpdHkw
IBcNMjYxMDMxMjMwMDAwWhgPMjEyNjEwMDgwMDAwMDBaMCsxGDAWBgNVBAoMD3Nw
cmluZ3RpZGUgbWluZTEPMA0GA1UEAwwGd29ya2VyMFkwEwYHKoZIzj0CAQYIKoZI
zj0DAQcDQgAE4s9dTcgwcTs70srZo+Fvc90SzTzv4+9Q+I0VmAAs5ux6GdM84dJm
dyufDz6Z+0118TQaUWjBdz0Dp9kbFMXRx6OBozCBoDAdBgNVHQ4EFgQUi8hhYH2d
74xWQT1pDve5AABCZEgwDAYDVR0TAQH/BAIwADAdBgNVHSUEFjAUBggrBgEFBQcD
AQYIKwYBBQUHAwIwIQYDVR0RBBowGIYWc3ByaW5ndGlkZTptaW5lL3dvcmtlcjAO
BgNVHQ8BAf8EBAMCB4AwHwYDVR0jBBgwFoAUSG551c8ekRS+JorATPk8J6YkD1cw
CgYIKoZIzj0EAwIDSQAwRgIhAKGRBGzkNo2z+rqqEPdmoX/OcbOod/pEC3bfDHko
Q1+KAiEA9S8DNCuQGtZz+uvhB/lB5Wou0a67YOmXzQ/DsYjn9hE=
-----END CERTIFICATE-----
)";
const char* const kOtherKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg319Vl/8Oqqk2zuW1
ljgK5f4xoOSB6/sbXHmwmrBa0LyhRANCAATiz11NyDBxOzvSytmj4W9z3RLNPO/j
71D4jRWYACzm7HoZ0zzh0mZ3K58PPpn7TXXxNBpRaMF3PQOn2RsUxdHH
-----END PRIVATE KEY-----
)";
const char* const kOldCrt = R"(-----BEGIN CERTIFICATE-----
MIICADCCAaWgAwIBAgIURxf5zeFJ2WOl759VAk+B7B4gkBwwCgYIKoZIzj0EAwIw
LjEYMBYGA1UECgwPc3ByaW5ndGlkZSBtaW5lMRIwEAYDVQQDDAlhdXRob3JpdHkw
HhcNMjYwOTAxMjMwMDAwWhcNMjYxMDAyMDAwMDAwWjArMRgwFgYDVQQKDA9zcHJp
bmd0aWRlIG1pbmUxDzANBgNVBAMMBndvcmtlcjBZMBMGByqGSM49AgEGCCqGSM49
AwEHA0IABLZL7E0rC694VCW+DNkxT/xoKqgAJfkra6v0M/GaVPiwrXPcd2FRes6h
etdW+w0FjxyeG+f8tqgJs2DL3uU+IUCjgaMwgaAwHQYDVR0OBBYEFB8gDOum5AmI
hJjUUcjyCcE2ldQpMAwGA1UdEwEB/wQCMAAwHQYDVR0lBBYwFAYIKwYBBQUHAwEG
CCsGAQUFBwMCMCEGA1UdEQQaMBiGFnNwcmluZ3RpZGU6bWluZS93b3JrZXIwDgYD
VR0PAQH/BAQDAgeAMB8GA1UdIwQYMBaAFC60usdbiKfc46kaEGw4OuGA7SpgMAoG
CCqGSM49BAMCA0kAMEYCIQDY1h9XKga22vz14Cy7HqT6YgsAeyyvrlqeuY6aAWgo
HAIhANa/F62e5adQe5AfjPVXN+/wDIcFNMj9PCpzOHvUgkci
-----END CERTIFICATE-----
)";
const char* const kOldKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgFpweHsvPdCYqkLL5
L8W2DHHpiKN2bL0aJ4jbNoY34TGhRANCAAS2S+xNKwuveFQlvgzZMU/8aCqoACX5
K2ur9DPxmlT4sK1z3HdhUXrOoXrXVvsNBY8cnhvn/LaoCbNgy97lPiFA
-----END PRIVATE KEY-----
)";
const char* const kCousinCrt = R"(-----BEGIN CERTIFICATE-----
MIICBTCCAaugAwIBAgIUP7iAGIWLOkF7htcSsJfENfAeVlMwCgYIKoZIzj0EAwIw
LjEYMBYGA1UECgwPc3ByaW5ndGlkZSBtaW5lMRIwEAYDVQQDDAlhdXRob3JpdHkw
IBcNMjYxMDMxMjMwMDAwWhgPMjEyNjEwMDgwMDAwMDBaMC0xGjAYBgNVBAoMEXNw
cmluZ3RpZGUgY291c2luMQ8wDQYDVQQDDAZ3b3JrZXIwWTATBgcqhkjOPQIBBggq
hkjOPQMBBwNCAARHZvdAF4cnZK0qFlzTu3N8iAoSOYWpvfmRWPWPUH7ljHqQFnCe
o0iWgMsREhlxh9kr5+5gWwuJNshSUEEnuJVTo4GlMIGiMB0GA1UdDgQWBBQL8y4x
7QfSPTdwribJojiLNgqlZDAMBgNVHRMBAf8EAjAAMB0GA1UdJQQWMBQGCCsGAQUF
BwMBBggrBgEFBQcDAjAjBgNVHREEHDAahhhzcHJpbmd0aWRlOmNvdXNpbi93b3Jr
ZXIwDgYDVR0PAQH/BAQDAgeAMB8GA1UdIwQYMBaAFC60usdbiKfc46kaEGw4OuGA
7SpgMAoGCCqGSM49BAMCA0gAMEUCIAlqcsZjmm8ZoRz315UcpL3cqvOClxCRan7J
clKqi//lAiEAkzvh3QvZAwLDfjop74Xb4oagu9utcr/pFEHgE0n0sqU=
-----END CERTIFICATE-----
)";
const char* const kCousinKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgpF9MMuMMhxyyLkX9
zFbLw4+/IM9jBQ+6Cu/V1xhHvwehRANCAARHZvdAF4cnZK0qFlzTu3N8iAoSOYWp
vfmRWPWPUH7ljHqQFnCeo0iWgMsREhlxh9kr5+5gWwuJNshSUEEnuJVT
-----END PRIVATE KEY-----
)";

// Folders with certificates, as processes of a job have them. They are in a temporary folder, which is deleted with
// this object.
class Certificates {
 public:
  Certificates() {
    std::string name = std::filesystem::temp_directory_path() / "springtide-tls-XXXXXX";
    root_ = mkdtemp(name.data());
    add("server", kMineCa, kServerCrt, kServerKey);
    add("worker", kMineCa, kWorkerCrt, kWorkerKey);
    add("other", kOtherCa, kOtherCrt, kOtherKey);
    add("stranger", kMineCa, kOtherCrt, kOtherKey);  // trusts the server, but the server does not trust it
    add("old", kMineCa, kOldCrt, kOldKey);
    add("cousin", kMineCa, kCousinCrt, kCousinKey);
    add("mixed", kMineCa, kWorkerCrt, kServerKey);
  }
  ~Certificates() { std::filesystem::remove_all(root_); }
  std::string operator[](const std::string& role) const { return root_ / role; }

 private:
  void add(const std::string& role, const char* ca, const char* certificate, const char* key) {
    std::filesystem::create_directory(root_ / role);
    std::ofstream(root_ / role / "ca.crt") << ca;
    std::ofstream(root_ / role / "tls.crt") << certificate;
    std::ofstream(root_ / role / "tls.key") << key;
  }
  std::filesystem::path root_;
};

const Certificates& certificates() {
  static const Certificates made;
  return made;
}

struct Secure : Cluster {
  explicit Secure(uint16_t servers, const std::string& client = "worker")
      : Cluster(servers, 1, certificates()["server"], client.empty() ? "" : certificates()[client]) {}
};

std::string said(const Cluster& cluster) {
  try {
    RemoteOptions options = cluster.options(false);
    options.connect_timeout_s = 1.5;
    RemoteBackend backend(options);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Pair {
  explicit Pair(bool exact = false, uint64_t rekey_bytes = 1 << 30) {
    int both[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both) == 0);
    const int bytes = 4096;  // small, so that socket buffers fill up soon
    for (const int fd : both) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    Fd left(both[0]), right(both[1]);
    std::thread other(
        [&] { one = Link(std::move(left), {certificates()["server"], TlsSide::listener, "worker", 10}); });
    two = Link(std::move(right), {certificates()["worker"], TlsSide::caller, "server", 10, exact, rekey_bytes});
    other.join();
    for (Link* each : {&one, &two}) set_timeouts(each->line(), 10, 10);
  }
  Link one, two;
};

std::vector<uint8_t> noise(std::mt19937_64& random, size_t bytes) {
  std::vector<uint8_t> made(bytes);
  for (uint8_t& byte : made) byte = static_cast<uint8_t>(random());
  return made;
}

// Divides the bytes into pieces of any size, some of them empty.
std::vector<iovec> pieces_of(std::vector<uint8_t>& bytes, std::mt19937_64& random) {
  std::vector<iovec> pieces;
  for (size_t at = 0; at < bytes.size();) {
    const size_t most = random() % 3 == 0 ? 100000 : 700;
    const size_t size = std::min<size_t>(bytes.size() - at, random() % most);
    pieces.push_back({bytes.data() + at, size});
    at += size;
  }
  return pieces;
}

}  // namespace

TEST(pulls_pushes_and_images_of_slots_are_the_same_with_tls) {
  Secure cluster(2);
  RemoteBackend backend(cluster.options(true));  // this backend would use shared memory if the server offered it
  declare(backend);
  std::mt19937_64 random(1);
  const Routed routed = random_plan(cluster.placement, random, 60000);  // replies of megabytes
  std::vector<float> ones(routed.row_offset.back(), 1.0f);
  const Part part{&routed, ones.data()};
  const std::vector<float> before = pulled(backend, routed);
  std::vector<std::unique_ptr<Pending>> pending;
  for (uint64_t i = 0; i < 6; ++i) pending.push_back(backend.push(std::span(&part, 1), named_push(1, 4 * i)));
  for (auto& each : pending) each->wait();
  CHECK(fell_by(before, pulled(backend, routed), 6));
  CHECK(backend.stats().transports == (std::vector<std::string>{"tcp", "tcp"}));
  const auto outcome = cluster[0].hand_over({"127.0.0.1", cluster[1].port(), 1, 10}, cluster[0].owned());
  CHECK(outcome.kept.empty() && outcome.in_doubt.empty() && !outcome.local && outcome.bytes > 1000000);
  CHECK(fell_by(before, pulled(backend, routed), 6));
}

TEST(a_proxy_reads_nothing_of_a_job_with_tls_and_all_of_one_without) {
  for (const bool secure : {true, false}) {
    Secure with(1);
    Cluster without(1);
    Cluster& cluster = secure ? with : without;
    Proxy proxy(cluster[0].port());
    proxy.record();
    RemoteOptions options = cluster.options(false);
    options.ports[0] = proxy.port();
    {
      RemoteBackend backend(options);
      TableSpec spec = table(0, 4);
      spec.name = "a_table_with_a_name";
      backend.declare(std::span(&spec, 1));
      const Routed routed{{0, 0}, {0x1122334455667788, 2}, {0, 4, 8}, {0, 2}};
      pulled(backend, routed);
    }
    const std::vector<char> seen = proxy.recorded();
    const auto sees = [&](const std::string& what) {
      return std::search(seen.begin(), seen.end(), what.begin(), what.end()) != seen.end();
    };
    CHECK(seen.size() > 1000);
    CHECK(sees("STDW") == !secure);
    CHECK(sees("a_table_with_a_name") == !secure);
    CHECK(sees("\x88\x77\x66\x55\x44\x33\x22\x11") == !secure);
  }
}

TEST(requests_survive_cuts_of_a_connection_with_tls) {
  Secure cluster(1);
  Proxy proxy(cluster[0].port());
  RemoteOptions options = cluster.options(false);
  options.ports[0] = proxy.port();
  RemoteBackend backend(options);
  declare(backend);
  std::mt19937_64 random(2);
  const Routed routed = random_plan(cluster.placement, random, 4000);
  std::vector<float> ones(routed.row_offset.back(), 1.0f);
  const Part part{&routed, ones.data()};
  const std::vector<float> before = pulled(backend, routed);
  for (uint64_t batch = 0; batch < 8; ++batch) {
    proxy.cut_replies_after(static_cast<int64_t>(random() % 100000));
    const auto pushing = backend.push(std::span(&part, 1), named_push(1, 4 * batch));
    pulled(backend, routed);
    pushing->wait();
  }
  proxy.cut_replies_after(-1);
  CHECK(fell_by(before, pulled(backend, routed), 8));
  CHECK(backend.stats().reconnects > 0);
}

TEST(strangers_are_told_why_and_cost_nothing) {
  CHECK(has(said(Secure(1, "other")), "its certificate is not good"));
  CHECK(has(said(Secure(1, "stranger")), "rejected this process's certificate"));
  CHECK(has(said(Secure(1, "old")), "certificate expired"));
  CHECK(has(said(Secure(1, "mixed")), "key values mismatch"));
  CHECK(has(said(Secure(1, "nowhere")), "No such file"));
  CHECK(has(said(Secure(1, "cousin")), "for the job 'mine', this is 'cousin'"));
  CHECK(
      has(said(Secure(1, "")), "this job has TLS, and it does not speak TLS 1.3: is SPRINGTIDE_TLS set on both sides"));
  CHECK(said(Secure(1)) == "");
  Cluster plain(1);
  plain.tls = certificates()["worker"];
  CHECK(has(said(plain), "does not speak TLS"));
}

TEST(a_server_whose_role_is_another_is_not_spoken_to) {
  CHECK(has(said(Cluster(1, 1, certificates()["worker"], certificates()["worker"])),
            "for a worker; a server was called"));
}

TEST(garbage_silence_and_half_a_handshake_end_and_the_server_goes_on) {
  Secure cluster(1);
  std::mt19937_64 random(3);
  std::vector<std::string> first = {"", "GET / HTTP/1.1\r\n\r\n", std::string(100000, '\0'),
                                    std::string("\x16\x03\x01\x40\x00", 5),
                                    std::string("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03", 10)};
  for (int i = 0; i < 40; ++i) {
    const auto bytes = noise(random, random() % 400);
    std::string text(bytes.begin(), bytes.end());
    if (i % 2 == 0) text = "\x16\x03\x01" + text;
    first.push_back(text);
  }
  std::vector<Fd> callers;
  for (const std::string& text : first) {
    callers.push_back(connect_tcp("127.0.0.1", cluster[0].port(), Clock::now() + std::chrono::seconds(5)));
    send(callers.back().get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  for (const Fd& fd : callers) {  // the server ends each connection, after invalid TLS or after a timeout
    set_timeouts(fd.get(), 20, 20);
    char byte = 0;
    ssize_t got = 0;
    while ((got = recv(fd.get(), &byte, 1, 0)) > 0) {
    }
    CHECK(got == 0 || errno == ECONNRESET);
  }
  CHECK(said(cluster) == "");
  CHECK(cluster[0].stats().refused >= first.size());
}

TEST(a_peer_that_stops_after_its_certificate_is_dropped) {
  Secure cluster(1);
  Fd fd = connect_tcp("127.0.0.1", cluster[0].port(), Clock::now() + std::chrono::seconds(5));
  Link silent(std::move(fd), {certificates()["worker"], TlsSide::caller, "server", 10});
  set_timeouts(silent.line(), 20, 20);
  uint8_t byte = 0;
  Io io = Io::ok;
  while (io == Io::ok) io = receive_all(silent.line(), &byte, 1);  // reads the server's last message, and then the end
  CHECK(io == Io::closed || io == Io::failed);
}

TEST(both_ways_at_once_and_by_bits_all_bytes_arrive_in_order) {
  Pair pair(false, 300000);  // with key updates in between
  std::mt19937_64 random(4);
  std::vector<uint8_t> there = noise(random, 3 << 20), back = noise(random, 2 << 20);
  std::vector<uint8_t> got_there(there.size()), got_back(back.size());
  std::thread receiving([&] { CHECK(receive_all(pair.one.line(), got_there.data(), got_there.size()) == Io::ok); });
  std::thread answering([&] {
    std::vector<iovec> out = {{back.data(), back.size()}};
    CHECK(send_all(pair.one.line(), out) == Io::ok && out.empty());
  });
  std::thread hearing([&] {
    std::vector<iovec> in;
    for (size_t at = 0; at < got_back.size(); at += 1 << 16) in.push_back({got_back.data() + at, 1 << 16});
    CHECK(receive_all(pair.two.line(), in) == Io::ok);
  });
  std::vector<iovec> out = pieces_of(there, random);
  size_t partly = 0;
  while (!out.empty()) {  // again and again sends as much as the kernel takes, as a peer does
    CHECK(send_some(pair.two.line(), out) == Io::ok);
    partly += out.empty() ? 0 : 1;
  }
  for (std::thread* each : {&receiving, &answering, &hearing}) each->join();
  CHECK(partly > 0);
  CHECK(got_there == there);
  CHECK(got_back == back);
}

TEST(an_exact_reader_leaves_the_next_message_on_the_socket) {
  Pair pair(true);
  std::vector<uint8_t> first(40000, 1), second(10, 2), got(40000);
  for (auto* message : {&first, &second}) {
    std::vector<iovec> out = {{message->data(), message->size()}};
    std::thread sending([&] { CHECK(send_all(pair.one.line(), out) == Io::ok); });
    if (message == &first) CHECK(receive_all(pair.two.line(), got.data(), got.size()) == Io::ok);
    sending.join();
  }
  uint8_t byte = 0;
  CHECK(recv(pair.two.get(), &byte, 1, MSG_PEEK) == 1);  // poll() would report the end
  CHECK(receive_all(pair.two.line(), got.data(), second.size()) == Io::ok && got[0] == 2 && got[10] == 1);
  set_timeouts(pair.two.line(), 0.05, 1);
  CHECK(receive_all(pair.two.line(), got.data(), 1) == Io::idle);
}

TEST(an_end_in_the_middle_is_told_from_one_between_frames_and_noise_from_both) {
  for (const size_t sent : {size_t{0}, size_t{5}}) {
    Pair pair;
    std::vector<uint8_t> bytes(sent, 7), got(10);
    std::vector<iovec> out = {{bytes.data(), bytes.size()}};
    CHECK(send_all(pair.one.line(), out) == Io::ok);
    shut_both(pair.one.get());
    CHECK(receive_all(pair.two.line(), got.data(), got.size()) == (sent == 0 ? Io::closed : Io::torn));
  }
  Pair pair;
  const std::string noise = "not a record of this connection, whatever it may be";
  CHECK(send(pair.one.get(), noise.data(), noise.size(), 0) == static_cast<ssize_t>(noise.size()));
  uint8_t byte = 0;
  CHECK(receive_all(pair.two.line(), &byte, 1) == Io::failed);
  CHECK(has(describe(Io::failed, pair.two.line()), "TLS"));
}

TEST(renewed_certificates_are_taken_up_by_the_next_connection) {
  Certificates own;
  Cluster cluster(1, 1, own["server"], own["worker"]);
  CHECK(said(cluster) == "");
  for (const char* name : {"ca.crt", "tls.crt", "tls.key"}) {
    std::filesystem::copy_file(own["other"] + "/" + name, own["worker"] + "/" + name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  CHECK(has(said(cluster), "its certificate is not good"));
}

}  // namespace springtide::tls_session_test
