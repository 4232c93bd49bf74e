// Package store reads chunks: from the cache on this machine, or else from a Source. It verifies
// every chunk that it returns. If a source lies, a read is retried; if the cache fails, the chunk
// is fetched. In no case does a reader get a wrong byte. The package does not know what chunks are
// for.
//
// A read passes these steps. A cache hit ends at the first step. Of the others, each wraps the
// next: both the request and the callback that receives the answer. So the answer passes the steps
// from the source up to the decoder, inside the source's failover, and a wrong answer leads to the
// next origin. NewFetcher builds the steps from the decoder to the source.
//
//	Share.Cached   share.go     the cache on this machine (cache.go)
//	retry          retry.go     one backoff, until the reader's deadline
//	flights        flights.go   readers of one unit share one request
//	decoder        decode.go    decodes and verifies; stores chunks after the readers have theirs
//	gate           gate.go      limits the flights, with one fair queue for all shares
//	link           link.go      estimates RTT and bandwidth; room.go: background requests wait
//	backoff        backoff.go   background requests pause while the source fails
//	Source         source.go    a chunk by reference, or a whole unit; does its own failover
//
// A share is one device's part of a node's requests. A flight is one request for a unit or chunk,
// shared by its readers. The gate admits a flight that a reader waits for (urgent) before others.
//
// The steps above flights belong to one reader, the steps below it to a request that several
// readers may share. This is why retry is outside: each reader has its own deadline.
package store
