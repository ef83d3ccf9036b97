//! Users, derived from credentials. Pure.

use crate::base::x509;
use http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const AUTHENTICATED: &str = "system:authenticated";
/// The key of the client certificate's digest in a user's extra attributes.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A user, as in TokenReviews and SubjectAccessReviews.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Unique name.
    pub name: String,
    /// Unique identifier, if the authenticator has one.
    pub uid: String,
    /// Groups, in order.
    pub groups: Vec<String>,
    /// Extra attributes of the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The result of one authentication method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuthenticationOutcome {
    User(User),
    /// No credentials of this kind.
    NoCredentials,
    /// Invalid credentials, or ones that cannot be verified; the reason is for the log.
    Invalid(String),
}

impl User {
    /// The user of a request without credentials.
    pub(super) fn anonymous() -> Self {
        Self { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// Whether the request had no credentials.
    pub(in crate::server) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Adds the group of authenticated users (upstream's `AuthenticatedGroupAdder`).
    fn authenticated(mut self) -> Self {
        let in_one = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
        if !self.is_anonymous() && !self.groups.iter().any(in_one) {
            self.groups.push(AUTHENTICATED.into());
        }
        self
    }
}

/// The user of a verified certificate: the common name, with the organizations as groups. There is no user without a
/// common name (upstream's `CommonNameUserConversion`).
pub(super) fn of_certificate(certificate: &[u8]) -> AuthenticationOutcome {
    let Some(facts) = x509::parse(certificate) else {
        return AuthenticationOutcome::Invalid("the client certificate cannot be read".into());
    };
    if facts.common_name.is_empty() {
        return AuthenticationOutcome::NoCredentials;
    }
    let mut uids = facts.uids.into_iter();
    let (uid, other) = (uids.next().unwrap_or_default(), uids.next());
    if other.is_some() {
        return AuthenticationOutcome::Invalid(
            "the client certificate has more than one UID".into(),
        );
    }
    let hash = Sha256::digest(certificate);
    let hash = crate::base::hex(&hash);
    let user = User {
        name: facts.common_name,
        uid,
        groups: facts.organizations,
        extra: [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={hash}")])].into(),
    };
    AuthenticationOutcome::User(user.authenticated())
}

/// The user in a TokenReview's status.
pub(super) fn of_token_review(status: TokenReviewStatus) -> AuthenticationOutcome {
    if status.authenticated != Some(true) {
        let why = status.error.filter(|why| !why.is_empty());
        return AuthenticationOutcome::Invalid(
            why.unwrap_or_else(|| "invalid bearer token".into()),
        );
    }
    let user = status.user.unwrap_or_default();
    let user = User {
        name: user.username.unwrap_or_default(),
        uid: user.uid.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    };
    AuthenticationOutcome::User(user.authenticated())
}

/// The bearer token of a request (upstream's `bearertoken`).
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let mut words = header.trim().splitn(3, ' ');
    let scheme = words.next()?;
    let token = words.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// Combines the results of all methods. Without credentials the user may be anonymous; invalid credentials are
/// rejected.
///
/// # Errors
/// The reason, for the log.
pub(super) fn authenticated_user(
    certificate: AuthenticationOutcome,
    token: AuthenticationOutcome,
    anonymous: bool,
) -> Result<User, String> {
    match (certificate, token) {
        (AuthenticationOutcome::User(user), _) | (_, AuthenticationOutcome::User(user)) => Ok(user),
        (AuthenticationOutcome::NoCredentials, AuthenticationOutcome::NoCredentials)
            if anonymous =>
        {
            Ok(User::anonymous())
        }
        (AuthenticationOutcome::NoCredentials, AuthenticationOutcome::NoCredentials) => {
            Err("no credentials".into())
        }
        (AuthenticationOutcome::Invalid(why), AuthenticationOutcome::NoCredentials)
        | (AuthenticationOutcome::NoCredentials, AuthenticationOutcome::Invalid(why)) => Err(why),
        (AuthenticationOutcome::Invalid(why), AuthenticationOutcome::Invalid(also)) => {
            Err(format!("{why}; {also}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::authentication::v1::UserInfo;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    fn known(name: &str) -> AuthenticationOutcome {
        AuthenticationOutcome::User(User { name: name.into(), ..User::default() })
    }

    fn bad(why: &str) -> AuthenticationOutcome {
        AuthenticationOutcome::Invalid(why.into())
    }

    #[test]
    fn one_good_credential_is_enough_and_a_bad_one_is_not_anonymous() {
        use AuthenticationOutcome::NoCredentials;
        let anonymous = Ok(ANONYMOUS);
        // Certificate, token, the user without and with anonymous requests.
        let rows = [
            (known("c"), NoCredentials, Ok("c"), Ok("c")),
            (known("c"), bad("t"), Ok("c"), Ok("c")),
            (bad("x"), known("t"), Ok("t"), Ok("t")),
            (NoCredentials, known("t"), Ok("t"), Ok("t")),
            (NoCredentials, NoCredentials, Err("no credentials"), anonymous),
            (bad("x"), NoCredentials, Err("x"), Err("x")),
            (NoCredentials, bad("t"), Err("t"), Err("t")),
            (bad("x"), bad("t"), Err("x; t"), Err("x; t")),
        ];
        for (certificate, token, closed, open) in rows {
            for (anonymous, expected) in [(false, closed), (true, open)] {
                let found = authenticated_user(certificate.clone(), token.clone(), anonymous);
                let found = found.map(|user| user.name);
                assert_eq!(
                    found.as_deref().map_err(String::as_str),
                    expected,
                    "{certificate:?} {token:?}"
                );
            }
        }
    }

    #[test]
    fn a_token_is_the_second_word_after_bearer() {
        let rows = [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            ("  BEARER abc  ", Some("abc")),
            ("Bearer abc def", Some("abc")),
            ("Bearer  abc", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("abc", None),
            ("", None),
        ];
        for (text, expected) in rows {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            assert_eq!(token(&headers), expected, "{text:?}");
        }
        assert_eq!(token(&HeaderMap::new()), None);
        let mut headers = HeaderMap::new();
        let bytes = http::HeaderValue::from_bytes(b"Bearer \xff\xfe").unwrap();
        headers.insert(header::AUTHORIZATION, bytes);
        assert_eq!(token(&headers), None);
    }

    #[test]
    fn an_authenticated_user_is_in_the_authenticated_group_once() {
        let of = |name: &str, groups: &[&str]| {
            let user = User {
                name: name.into(),
                groups: groups.iter().map(|group| (*group).to_owned()).collect(),
                ..User::default()
            };
            user.authenticated().groups
        };
        assert_eq!(of("a", &["g"]), ["g", AUTHENTICATED]);
        assert_eq!(of("a", &[AUTHENTICATED, "g"]), [AUTHENTICATED, "g"]);
        assert_eq!(of("a", &[UNAUTHENTICATED]), [UNAUTHENTICATED]);
        assert_eq!(of(ANONYMOUS, &[UNAUTHENTICATED]), [UNAUTHENTICATED]);
    }

    #[test]
    fn a_token_review_decides_about_a_token() {
        let status = |authenticated, error: Option<&str>, user| TokenReviewStatus {
            authenticated,
            error: error.map(Into::into),
            user,
            ..TokenReviewStatus::default()
        };
        let user = UserInfo {
            username: Some("system:serviceaccount:a:b".into()),
            groups: Some(vec!["system:serviceaccounts".into()]),
            ..UserInfo::default()
        };
        let AuthenticationOutcome::User(found) =
            of_token_review(status(Some(true), None, Some(user)))
        else {
            panic!("a user was authenticated");
        };
        assert_eq!(found.name, "system:serviceaccount:a:b");
        assert_eq!(found.groups, ["system:serviceaccounts", AUTHENTICATED]);
        let rows = [
            (status(Some(false), None, None), "invalid bearer token"),
            (status(None, None, None), "invalid bearer token"),
            (status(None, Some("expired"), None), "expired"),
        ];
        for (status, why) in rows {
            assert_eq!(of_token_review(status), bad(why));
        }
    }

    #[test]
    fn a_certificate_names_its_holder_and_itself() {
        let made = |names: &[(DnType, &str)]| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            for (kind, value) in names {
                params.distinguished_name.push(kind.clone(), *value);
            }
            let key = KeyPair::generate().unwrap();
            of_certificate(params.self_signed(&key).unwrap().der())
        };
        let names = [(DnType::OrganizationName, "system:masters"), (DnType::CommonName, "admin")];
        let AuthenticationOutcome::User(user) = made(&names) else {
            panic!("a user was authenticated");
        };
        assert_eq!(user.name, "admin");
        assert_eq!(user.groups, ["system:masters", AUTHENTICATED]);
        let id = &user.extra[CREDENTIAL_ID][0];
        assert_eq!(id.len(), "X509SHA256=".len() + 64, "{id}");
        assert_eq!(made(&[(DnType::OrganizationName, "g")]), AuthenticationOutcome::NoCredentials);
        assert!(matches!(of_certificate(b"junk"), AuthenticationOutcome::Invalid(_)));
    }
}
