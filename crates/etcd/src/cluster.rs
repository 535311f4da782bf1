//! Members, alarms and upkeep.

use prost::Message;
use tonic::Status;

use ichor_types::deadlines::CALL_ETCD_DEFRAGMENT;
use ichor_wire::etcd::{
    AlarmMember, AlarmRequest, AlarmResponse, DowngradeRequest, DowngradeResponse, Headed, Member,
    MemberAddRequest, MemberAddResponse, MemberId, MemberListRequest, MemberListResponse,
    MemberUpdateRequest, MoveLeaderRequest, Nothing, StatusResponse,
};

use crate::Client;
use crate::call::Kind::{self, Read, Write};

/// What is wrong with a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmKind {
    /// Nothing, or something newer than this client.
    None,
    /// Its database is full.
    NoSpace,
    /// Its data differ from those of others.
    Corrupt,
}

/// An alarm of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    /// The member.
    pub member: u64,
    /// What is wrong.
    pub kind: AlarmKind,
}

/// What is done about a downgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Downgrade {
    /// Would it be possible?
    Validate,
    /// Allows it.
    Enable,
    /// Calls it off.
    Cancel,
}

impl Client {
    /// The members as the asked one knows them, or as the leader does when `linearizable`.
    pub async fn members(&self, linearizable: bool) -> Result<Vec<Member>, Status> {
        let answer: MemberListResponse =
            self.call(Read, "/etcdserverpb.Cluster/MemberList", &MemberListRequest { linearizable }).await?;
        Ok(answer.members)
    }

    /// Adds a member that does not vote yet. Returns its id and all members, itself included.
    pub async fn add_learner(&self, peer_urls: Vec<String>) -> Result<(u64, Vec<Member>), Status> {
        let request = MemberAddRequest { peer_urls, is_learner: true };
        let answer: MemberAddResponse = self.change("/etcdserverpb.Cluster/MemberAdd", &request).await?;
        Ok((answer.member.map(|member| member.id).unwrap_or_default(), answer.members))
    }

    /// Lets a learner vote. A learner cannot do so for itself.
    pub async fn promote(&self, id: u64) -> Result<(), Status> {
        self.change::<Headed>("/etcdserverpb.Cluster/MemberPromote", &MemberId { id }).await.map(drop)
    }

    /// Takes a member out of the cluster.
    pub async fn remove(&self, id: u64) -> Result<(), Status> {
        self.change::<Headed>("/etcdserverpb.Cluster/MemberRemove", &MemberId { id }).await.map(drop)
    }

    /// Tells where a member is reached by the others.
    pub async fn update_peer_urls(&self, id: u64, peer_urls: Vec<String>) -> Result<(), Status> {
        let request = MemberUpdateRequest { id, peer_urls };
        self.change::<Headed>("/etcdserverpb.Cluster/MemberUpdate", &request).await.map(drop)
    }

    /// How the asked member is.
    pub async fn status(&self) -> Result<StatusResponse, Status> {
        self.call(Read, "/etcdserverpb.Maintenance/Status", &Nothing {}).await
    }

    /// The id of the asked member, and the alarms of all.
    pub async fn alarms(&self) -> Result<(u64, Vec<Alarm>), Status> {
        let answer = self.alarm(Read, AlarmRequest::default()).await?;
        let id = answer.header.map(|header| header.member_id).unwrap_or_default();
        Ok((id, answer.alarms.iter().map(alarm).collect()))
    }

    /// Ends all alarms there are, and returns them.
    pub async fn disarm(&self) -> Result<Vec<Alarm>, Status> {
        const DEACTIVATE: i32 = 2;
        let standing = self.alarm(Read, AlarmRequest::default()).await?.alarms;
        for AlarmMember { member_id, alarm } in &standing {
            let request = AlarmRequest { action: DEACTIVATE, member_id: *member_id, alarm: *alarm };
            self.alarm(Write, request).await?;
        }
        Ok(standing.iter().map(alarm).collect())
    }

    async fn alarm(&self, kind: Kind, request: AlarmRequest) -> Result<AlarmResponse, Status> {
        self.call(kind, "/etcdserverpb.Maintenance/Alarm", &request).await
    }

    /// Gives space inside of the database back to the file system.
    pub async fn defragment(&self) -> Result<(), Status> {
        let body = Nothing {}.encode_to_vec().into();
        self.unary(Write, "/etcdserverpb.Maintenance/Defragment", body, CALL_ETCD_DEFRAGMENT).await.map(drop)
    }

    /// Makes another member the leader. Only the leader can.
    pub async fn move_leader(&self, target_id: u64) -> Result<(), Status> {
        let request = MoveLeaderRequest { target_id };
        self.call::<Headed>(Write, "/etcdserverpb.Maintenance/MoveLeader", &request).await.map(drop)
    }

    /// Checks, allows or calls off a downgrade; returns the version of the cluster.
    pub async fn downgrade(&self, what: Downgrade, version: &str) -> Result<String, Status> {
        let action = match what {
            Downgrade::Validate => 0,
            Downgrade::Enable => 1,
            Downgrade::Cancel => 2,
        };
        let request = DowngradeRequest { action, version: version.to_owned() };
        let answer: DowngradeResponse =
            self.call(Write, "/etcdserverpb.Maintenance/Downgrade", &request).await?;
        Ok(answer.version)
    }
}

fn alarm(alarm: &AlarmMember) -> Alarm {
    let kind = match alarm.alarm {
        1 => AlarmKind::NoSpace,
        2 => AlarmKind::Corrupt,
        _ => AlarmKind::None,
    };
    Alarm { member: alarm.member_id, kind }
}
