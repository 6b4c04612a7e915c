// Runs the tests of one file (native_tests NAME), or replays the files of a folder in a fuzz target (native_tests NAME
// FOLDER).
#include <filesystem>
#include <fstream>
#include <iterator>

#include "testing/check.h"
#include "testing/fuzz.h"

namespace {

int replay(springtide::fuzz::Target target, const char* folder) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
    std::printf("%s\n", entry.path().c_str());
    std::fflush(stdout);
    target({reinterpret_cast<const uint8_t*>(content.data()), content.size()});
    ++files;
  }
  std::printf("ok   %d inputs\n", files);
  return files == 0;
}

}  // namespace

int main(int count, char** words) {
  if (count == 3) return replay(springtide::fuzz::targets().at(words[1]), words[2]);
  return springtide::checks::run(count == 2 ? words[1] : "");
}
