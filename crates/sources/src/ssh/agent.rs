//! An ssh agent with one key, for one process
//! (<https://datatracker.ietf.org/doc/html/draft-ietf-sshm-ssh-agent>).

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};

use super::identity::Identity;

/// Most bytes of a message, as in OpenSSH.
const MAX_MESSAGE: u32 = 256 << 10;

const FAILURE: u8 = 5;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;

/// Answers the process with this id, until it is aborted.
pub(super) async fn serve(listener: UnixListener, identity: Arc<Identity>, pid: Option<i32>) {
    while let Ok((stream, _)) = listener.accept().await {
        let asker = stream.peer_cred().ok().and_then(|peer| peer.pid());
        if pid.is_none() || asker != pid {
            tracing::warn!(?asker, "another process asked the agent of an ssh");
            continue;
        }
        // ssh uses one connection, and closes it when it has signed in.
        if let Err(error) = answer(stream, &identity).await {
            tracing::debug!(%error, "an ssh left its agent");
        }
    }
}

async fn answer(mut stream: UnixStream, identity: &Identity) -> io::Result<()> {
    loop {
        let length = match stream.read_u32().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            length => length?,
        };
        if length == 0 || length > MAX_MESSAGE {
            return Err(io::Error::other("a message of a length that no ssh sends"));
        }
        let mut message = vec![0; length as usize];
        stream.read_exact(&mut message).await?;
        let answer = respond(&message, identity).unwrap_or_else(|| vec![FAILURE]);
        stream
            .write_u32(u32::try_from(answer.len()).map_err(io::Error::other)?)
            .await?;
        stream.write_all(&answer).await?;
    }
}

fn respond(message: &[u8], identity: &Identity) -> Option<Vec<u8>> {
    match message.split_first()? {
        (&REQUEST_IDENTITIES, _) => {
            let mut answer = vec![IDENTITIES_ANSWER];
            answer.extend(1u32.to_be_bytes());
            put(&mut answer, identity.blob())?;
            put(&mut answer, b"")?;
            Some(answer)
        }
        (&SIGN_REQUEST, rest) => {
            let (blob, rest) = take(rest)?;
            let (data, rest) = take(rest)?;
            let flags = u32::from_be_bytes(rest.try_into().ok()?);
            let signature = (blob == identity.blob()).then(|| identity.sign(data, flags))??;
            let mut answer = vec![SIGN_RESPONSE];
            put(&mut answer, &signature)?;
            Some(answer)
        }
        _ => None,
    }
}

/// Writes a string: its length and its bytes.
pub(super) fn put(to: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    to.extend(u32::try_from(bytes.len()).ok()?.to_be_bytes());
    to.extend_from_slice(bytes);
    Some(())
}

fn take(from: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = from.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_end_early_are_refused() {
        let identity = Identity::for_tests();
        let mut sign = vec![SIGN_REQUEST];
        put(&mut sign, identity.blob()).unwrap();
        put(&mut sign, b"data").unwrap();
        sign.extend([0; 4]);
        assert!(respond(&sign, &identity).is_some());
        for end in 0..sign.len() {
            assert_eq!(respond(&sign[..end], &identity), None, "{end}");
        }
        let mut other = vec![SIGN_REQUEST];
        put(&mut other, b"another key").unwrap();
        put(&mut other, b"data").unwrap();
        other.extend([0; 4]);
        assert_eq!(respond(&other, &identity), None);
        assert_eq!(respond(&[SIGN_REQUEST, 255, 255, 255, 255], &identity), None);
        // ssh's session binding is not needed here.
        assert_eq!(respond(&[27, 0, 0, 0, 0], &identity), None);
    }
}
