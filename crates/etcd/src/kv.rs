//! Keys and values, as far as a node needs them.

use tonic::Status;

use ichor_wire::etcd::{
    DeleteRangeRequest, DeleteRangeResponse, Headed, KeyValue, PutRequest, RangeRequest, RangeResponse,
    TxnRequest, TxnResponse,
};

use crate::Client;
use crate::call::Kind::{Read, Write};

impl Client {
    /// The value of a key, as the cluster agrees on it.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Status> {
        let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
        Ok(self.range(request).await?.kvs.pop().map(|found| found.value))
    }

    /// All keys below a prefix.
    pub async fn list(&self, prefix: &str) -> Result<Vec<KeyValue>, Status> {
        let request =
            RangeRequest { key: prefix.into(), range_end: after_prefix(prefix), ..RangeRequest::default() };
        Ok(self.range(request).await?.kvs)
    }

    /// Sets a key.
    pub async fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<(), Status> {
        let request = PutRequest { key: key.into(), value: value.into(), lease: 0 };
        self.call::<Headed>(Write, "/etcdserverpb.KV/Put", &request).await.map(drop)
    }

    /// Removes a key; tells whether it was there.
    pub async fn delete(&self, key: &str) -> Result<bool, Status> {
        let request = DeleteRangeRequest { key: key.into(), range_end: Vec::new() };
        let answer: DeleteRangeResponse = self.call(Write, "/etcdserverpb.KV/DeleteRange", &request).await?;
        Ok(answer.deleted > 0)
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.call(Read, "/etcdserverpb.KV/Range", &request).await
    }

    pub(crate) async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, Status> {
        self.call(Write, "/etcdserverpb.KV/Txn", request).await
    }
}

/// The first key behind all keys with this prefix.
pub(crate) fn after_prefix(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Every key is behind the empty prefix.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(after_prefix("a/"), b"a0");
        assert_eq!(after_prefix(""), [0]);
    }
}
