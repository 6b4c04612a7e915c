// A TCP proxy in front of a server, for tests. The proxy can cut connections immediately, or after a given number of
// reply bytes.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "net/socket.h"

namespace springtide {

class Proxy {
 public:
  explicit Proxy(uint16_t to) : to_(to), listener_(listen_tcp("127.0.0.1", 0, port_)) {
    acceptor_ = std::thread([this] { accept_loop(); });
  }
  ~Proxy() {
    closing_ = true;
    shut_both(listener_.get());
    acceptor_.join();
    cut();
    for (std::thread& thread : threads_) thread.join();
  }
  uint16_t port() const { return port_; }
  void cut() {
    const std::lock_guard lock(mutex_);
    for (const Fd& fd : fds_) shut_both(fd.get());
    ++cuts_;
  }
  // Cuts the connections after this many more bytes of replies. The server has then done its work, but the client does
  // not know this.
  void cut_replies_after(int64_t bytes) { left_ = bytes; }
  void send_to(uint16_t port) { to_ = port; }
  void refuse(bool refuse) { refusing_ = refuse; }
  void hold_replies() { holding_ = true; }  // from now on, replies are not forwarded
  int cuts() const { return cuts_; }
  void record() { recording_ = true; }
  std::vector<char> recorded() const {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }

 private:
  void accept_loop() {
    while (!closing_) {
      Fd client(accept(listener_.get(), nullptr, nullptr));
      if (!client || closing_ || refusing_) continue;
      Fd server = connect_tcp("127.0.0.1", to_, Clock::now() + std::chrono::seconds(5));
      if (!server) continue;
      const int a = client.get(), b = server.get();
      const std::lock_guard lock(mutex_);
      fds_.push_back(std::move(client));
      fds_.push_back(std::move(server));
      threads_.emplace_back([this, a, b] { pump(a, b, false); });
      threads_.emplace_back([this, a, b] { pump(b, a, true); });
    }
  }
  void pump(int from, int to, bool replies) {
    std::vector<char> bytes(1 << 16);
    while (true) {
      const ssize_t count = recv(from, bytes.data(), bytes.size(), 0);
      if (count <= 0) break;
      if (recording_) {
        const std::lock_guard lock(mutex_);
        recorded_.insert(recorded_.end(), bytes.begin(), bytes.begin() + count);
      }
      if (replies && holding_) continue;
      if (replies && left_ >= 0 && (left_ -= count) < 0) {
        left_ = -1;
        cut();
        return;
      }
      if (send(to, bytes.data(), static_cast<size_t>(count), MSG_NOSIGNAL) != count) break;
    }
    shut_both(from);
    shut_both(to);
  }

  std::atomic<uint16_t> to_;
  uint16_t port_ = 0;
  Fd listener_;
  std::atomic<bool> closing_{false}, refusing_{false}, holding_{false}, recording_{false};
  std::atomic<int64_t> left_{-1};
  std::atomic<int> cuts_{0};
  mutable std::mutex mutex_;
  std::vector<char> recorded_;
  std::list<Fd> fds_;  // kept open until the end, so that no descriptor is reused
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace springtide
