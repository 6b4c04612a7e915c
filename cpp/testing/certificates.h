// Certificates for native tests, good for a hundred years: of a job "mine", of another authority with a job of the same
// name, and two of mine's authority that are not to be let in. Keys that anybody can read here protect nothing.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace springtide {

inline const char* const kMineCa = R"(-----BEGIN CERTIFICATE-----
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
inline const char* const kServerCrt = R"(-----BEGIN CERTIFICATE-----
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
inline const char* const kServerKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgf+Ppe9YEuxmy3JZB
YETflRbR8aMoTjBRdrg0kfJ8McahRANCAARSVb+n/5kDr8WONPN6v5+tTNJgA0xJ
8zf6btLUE/LU1d5O65/vXdw6iohV3tH5hmA18m31U+LWJ/oKxhldQXxd
-----END PRIVATE KEY-----
)";
inline const char* const kWorkerCrt = R"(-----BEGIN CERTIFICATE-----
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
inline const char* const kWorkerKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgRavYlTa/lQ499Ywd
X5BzjtwFKhBZ9U0uhq79KrBTH/ehRANCAARTDpjUhkLgz5fmpQv1KdsBqBCjxc86
05q6V22uR2T3WksJKJItM3v25Vw5oBKICxykqhSZQwI2QmkpftIVN7P8
-----END PRIVATE KEY-----
)";
inline const char* const kOtherCa = R"(-----BEGIN CERTIFICATE-----
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
inline const char* const kOtherCrt = R"(-----BEGIN CERTIFICATE-----
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
inline const char* const kOtherKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg319Vl/8Oqqk2zuW1
ljgK5f4xoOSB6/sbXHmwmrBa0LyhRANCAATiz11NyDBxOzvSytmj4W9z3RLNPO/j
71D4jRWYACzm7HoZ0zzh0mZ3K58PPpn7TXXxNBpRaMF3PQOn2RsUxdHH
-----END PRIVATE KEY-----
)";
inline const char* const kOldCrt = R"(-----BEGIN CERTIFICATE-----
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
inline const char* const kOldKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgFpweHsvPdCYqkLL5
L8W2DHHpiKN2bL0aJ4jbNoY34TGhRANCAAS2S+xNKwuveFQlvgzZMU/8aCqoACX5
K2ur9DPxmlT4sK1z3HdhUXrOoXrXVvsNBY8cnhvn/LaoCbNgy97lPiFA
-----END PRIVATE KEY-----
)";
inline const char* const kCousinCrt = R"(-----BEGIN CERTIFICATE-----
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
inline const char* const kCousinKey = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgpF9MMuMMhxyyLkX9
zFbLw4+/IM9jBQ+6Cu/V1xhHvwehRANCAARHZvdAF4cnZK0qFlzTu3N8iAoSOYWp
vfmRWPWPUH7ljHqQFnCeo0iWgMsREhlxh9kr5+5gWwuJNshSUEEnuJVT
-----END PRIVATE KEY-----
)";

// Folders as a process of a job has them, in a temporary one that goes with this.
class Certificates {
 public:
  Certificates() {
    std::string name = std::filesystem::temp_directory_path() / "springtide-tls-XXXXXX";
    root_ = mkdtemp(name.data());
    add("server", kMineCa, kServerCrt, kServerKey);
    add("worker", kMineCa, kWorkerCrt, kWorkerKey);
    add("other", kOtherCa, kOtherCrt, kOtherKey);
    add("stranger", kMineCa, kOtherCrt, kOtherKey);  // believes the server, and is not believed
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

}  // namespace springtide
